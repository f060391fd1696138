"""Batch normalization, residual and relu in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_channel_mask import prepare_masked
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("batch_norm_add_relu.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_masked(direction, spec, _SOURCE)
