"""Batch normalization in Triton."""

from __future__ import annotations

from ..backends import triton_channel, triton_channel_last
from ..spec import Prepared, Spec
from .batch_norm import EPS, MOMENTUM


def prepare(direction: str, spec: Spec) -> Prepared:
    last = spec.operation.name.endswith("nhwc")
    if direction == "backward":
        return triton_channel_last.backward(spec) if last else triton_channel.backward(spec)
    if "inference" in spec.operation.name:
        return triton_channel.inference(spec, EPS, last=last)
    training = triton_channel_last.training if last else triton_channel.training
    return training(spec, EPS, MOMENTUM)
