"""RMSNorm in Numba CUDA: rows in registers, column sums in two stages."""

from __future__ import annotations

from ..backends.numba_rows import rms_norm_backward, rms_norm_forward
from ..spec import Prepared, Spec
from .rms_norm import EPS


def prepare(direction: str, spec: Spec) -> Prepared:
    if direction == "forward":
        return rms_norm_forward(spec, EPS)
    return rms_norm_backward(spec, normed="x")
