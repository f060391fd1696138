"""Residual add and RMSNorm in one Numba CUDA kernel: h is written and normalised from registers."""

from __future__ import annotations

from ..backends.numba_norm import norm_backward, norm_forward
from ..normalization.rms_norm import EPS
from ..spec import Prepared, Spec


def prepare(direction: str, spec: Spec) -> Prepared:
    if direction == "forward":
        return norm_forward(spec, EPS)
    return norm_backward(spec, normed="h")
