"""Conversions in PyTorch."""

from __future__ import annotations

import torch

from ..backends.torch import Eager, PerOperation


def _to(dtype: torch.dtype) -> Eager:
    return Eager(lambda x: x.to(dtype, copy=True), into=lambda y, x: y.copy_(x))


prepare = PerOperation(
    {
        "cast_to_float32": _to(torch.float32),
        "cast_to_float16": _to(torch.float16),
        "cast_to_bfloat16": _to(torch.bfloat16),
    }
)
