"""RMSNorm and quantization in PyTorch, call after call."""

from __future__ import annotations

from functools import partial

import torch

from ..backends.torch import Eager, PerOperation
from ..normalization.rms_norm_torch import forward as rms_norm
from ..quantization.quantize_torch import by_tensor, nvfp4

Real = torch.Tensor

e4m3 = partial(by_tensor, code=torch.float8_e4m3fn)


def _norm_e4m3(x: Real, weight: Real, scale: Real) -> Real:
    return e4m3(rms_norm(x, weight), scale)


def _norm_nvfp4(x: Real, weight: Real, scale: Real) -> tuple[Real, Real]:
    return nvfp4(rms_norm(x, weight), scale)


def _add_e4m3(x: Real, residual: Real, weight: Real, scale: Real) -> tuple[Real, Real]:
    h = x + residual
    return h, _norm_e4m3(h, weight, scale)


def _add_nvfp4(x: Real, residual: Real, weight: Real, scale: Real) -> tuple[Real, Real, Real]:
    h = x + residual
    return h, *_norm_nvfp4(h, weight, scale)


prepare = PerOperation(
    {
        "rms_norm_quantize_e4m3": Eager(_norm_e4m3),
        "rms_norm_quantize_nvfp4": Eager(_norm_nvfp4),
        "add_rms_norm_quantize_e4m3": Eager(_add_e4m3),
        "add_rms_norm_quantize_nvfp4": Eager(_add_nvfp4),
    }
)
