"""Batch normalization and relu in one Triton pass over the images."""

from __future__ import annotations

from ..backends.triton_channel import backward, inference, training
from ..normalization.batch_norm import EPS, MOMENTUM
from ..spec import Prepared, Spec


def prepare(direction: str, spec: Spec) -> Prepared:
    if direction == "backward":
        return backward(spec, relu=True)
    if spec.operation.name == "batch_norm_inference_relu":
        return inference(spec, EPS, relu=True)
    return training(spec, EPS, MOMENTUM, relu=True)
