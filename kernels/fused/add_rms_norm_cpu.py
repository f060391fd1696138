"""Residual add and RMSNorm on the host: h is normalized from a buffer in the cache."""

from __future__ import annotations

from ..backends.cpu import refuses as refuses
from ..backends.cpu_norm import prepare_norm_forward
from ..backends.cpu_norm_backward import prepare_norm_backward
from ..normalization.rms_norm import EPS
from ..spec import Prepared, Spec


def prepare(direction: str, spec: Spec) -> Prepared:
    if direction == "forward":
        return prepare_norm_forward(spec, EPS)
    return prepare_norm_backward(spec, normed="h")
