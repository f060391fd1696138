"""Gradient accumulation in CuPy: one ElementwiseKernel of arrays of two types."""

from __future__ import annotations

from ..backends.cupy import Elementwise
from ..backends.cupy import prepare as prepare_kernels
from ..spec import Prepared, Spec


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_kernels(
        spec, [Elementwise("grad_accumulate", ["total", "g"], ["y"], "y = total + get(g)")]
    )
