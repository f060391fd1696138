"""Batch normalization of NCHW images in Triton."""

from __future__ import annotations

from ..backends.triton_channel import backward, inference, training
from ..spec import Prepared, Spec
from .batch_norm import EPS, MOMENTUM

_PLANES = "of NCHW images alone"
LACKS = {"batch_norm_inference_nhwc": _PLANES, "batch_norm_nhwc": _PLANES}


def prepare(direction: str, spec: Spec) -> Prepared:
    if direction == "backward":
        return backward(spec)
    if spec.operation.name == "batch_norm_inference":
        return inference(spec, EPS)
    return training(spec, EPS, MOMENTUM)
