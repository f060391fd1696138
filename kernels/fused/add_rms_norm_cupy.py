"""Residual add and RMSNorm in CuPy, forward: what its classes can do is three kernels."""

from __future__ import annotations

from ..backends.cupy_norm import prepare_norm
from ..backends.cupy_norm import refuses_backward as refuses
from ..normalization.rms_norm import EPS
from ..spec import Prepared, Spec

__all__ = ["prepare", "refuses"]


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_norm(spec, EPS)
