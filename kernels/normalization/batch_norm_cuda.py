"""Batch normalization in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_channel import prepare_inference, prepare_training
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("batch_norm.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    if spec.operation.name.startswith("batch_norm_inference"):
        return prepare_inference(spec, _SOURCE)
    return prepare_training(direction, spec, _SOURCE)
