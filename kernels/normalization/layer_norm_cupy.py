"""Layer normalization in CuPy, forward: two ReductionKernels, then an ElementwiseKernel."""

from __future__ import annotations

from ..backends.cupy_norm import prepare_norm
from ..backends.cupy_norm import refuses_backward as refuses
from ..spec import Prepared, Spec
from .layer_norm import EPS

__all__ = ["prepare", "refuses"]


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_norm(spec, EPS)
