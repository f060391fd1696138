"""SiLU in CuPy: one ElementwiseKernel per direction."""

from __future__ import annotations

from .pointwise_cupy import prepare as prepare
