"""Dequantization in PyTorch: codes to float32, times their scales, rounded once."""

from __future__ import annotations

import torch

from ..backends.torch import Eager, PerOperation
from .quantize import in_blocks

Real = torch.Tensor


def _of_pairs(q: Real) -> Real:
    """Numbers of e2m1 codes, float32: a table of 16, which the indices walk through."""
    sizes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=q.device)
    codes = torch.stack((q & 15, q >> 4), -1).flatten(-2).int()
    return torch.cat((sizes, -sizes))[codes]


def _by_block(numbers: Real, scales: Real) -> Real:
    block = numbers.shape[-1] // scales.shape[-1]
    return (in_blocks(numbers, block) * scales.float()[..., None]).flatten(-2)


def _of_tensor(q: Real, scale: Real, *, dtype: torch.dtype) -> Real:
    return (q.float() * scale).to(dtype)


def _of_rows(q: Real, scales: Real, *, dtype: torch.dtype) -> Real:
    return (q.float() * scales[:, None]).to(dtype)


def _mxfp8(q: Real, scales: Real, *, dtype: torch.dtype) -> Real:
    return _by_block(q.float(), scales).to(dtype)


def _mxfp4(q: Real, scales: Real, *, dtype: torch.dtype) -> Real:
    return _by_block(_of_pairs(q), scales).to(dtype)


def _nvfp4(q: Real, scales: Real, scale: Real, *, dtype: torch.dtype) -> Real:
    return _by_block(_of_pairs(q), scales.float() * scale).to(dtype)


prepare = PerOperation(
    {
        "dequantize_e4m3": Eager(_of_tensor),
        "dequantize_e5m2": Eager(_of_tensor),
        "dequantize_e4m3_rows": Eager(_of_rows),
        "dequantize_int8_rows": Eager(_of_rows),
        "dequantize_mxfp8": Eager(_mxfp8),
        "dequantize_mxfp4": Eager(_mxfp4),
        "dequantize_nvfp4": Eager(_nvfp4),
    }
)
