"""Residual add and layer normalization in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_layer_norm import prepare_layer_norm
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("add_layer_norm.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_layer_norm(direction, spec, _SOURCE)
