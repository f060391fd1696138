"""Batch normalization in Triton."""

from __future__ import annotations

from ..backends import triton_channel, triton_channel_last
from ..spec import Prepared, Spec
from .batch_norm import EPS, MOMENTUM


def prepare(direction: str, spec: Spec) -> Prepared:
    last = spec.operation.name.endswith("nhwc")
    if "inference" in spec.operation.name:
        return triton_channel.inference(spec, EPS, last=last)
    channel = triton_channel_last if last else triton_channel
    if direction == "backward":
        return channel.backward(spec)
    return channel.training(spec, EPS, MOMENTUM)
