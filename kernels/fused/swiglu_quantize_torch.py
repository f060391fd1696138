"""SwiGLU and quantization in PyTorch, call after call."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..backends.torch import Eager, PerOperation
from ..quantization.quantize_torch import nvfp4
from .rms_norm_quantize_torch import e4m3

Real = torch.Tensor


def _e4m3(gate: Real, up: Real, scale: Real) -> Real:
    return e4m3(functional.silu(gate) * up, scale)


def _nvfp4(gate: Real, up: Real, scale: Real) -> tuple[Real, Real]:
    return nvfp4(functional.silu(gate) * up, scale)


prepare = PerOperation(
    {"swiglu_quantize_e4m3": Eager(_e4m3), "swiglu_quantize_nvfp4": Eager(_nvfp4)}
)
