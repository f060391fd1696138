"""RMSNorm in CuPy, forward: a ReductionKernel for rstd, then an ElementwiseKernel; `raw` is a
RawModule of the CUDA C++, both ways.
"""

from __future__ import annotations

from ..backends.cupy_norm import prepare_norm
from ..backends.cupy_norm import refuses_backward as refuses
from ..backends.cupy_raw import prepare_raw
from ..spec import Prepared, Spec
from .rms_norm import EPS
from .rms_norm_cuda import prepare as prepare_cuda

__all__ = ["prepare", "refuses", "refuses_raw"]

VARIANTS = ("raw",)


def refuses_raw(direction: str, dtype: str) -> None:
    """Nothing of what CUDA C++ has."""


def prepare(direction: str, spec: Spec) -> Prepared:
    if spec.variant:
        return prepare_raw(prepare_cuda, direction, spec)
    return prepare_norm(spec, EPS)
