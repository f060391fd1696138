"""Batch normalization and relu in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda import TYPES
from ..backends.cuda_channel import prepare_inference, prepare_training
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("batch_norm_relu.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    relu = f"ThenRelu<{TYPES[spec.dtype.name]}>"
    if spec.operation.name == "batch_norm_inference_relu":
        return prepare_inference(spec, _SOURCE, relu)
    return prepare_training(direction, spec, _SOURCE, relu)
