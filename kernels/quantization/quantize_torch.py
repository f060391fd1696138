"""Quantization in PyTorch: the arithmetic people write where there is no call for it."""

from __future__ import annotations

from functools import partial

import torch

from ..backends.torch import Eager, PerOperation
from .quantize import MX_BLOCK, NV_BLOCK, SMALLEST, in_blocks

Real = torch.Tensor
Pair = tuple[torch.Tensor, torch.Tensor]

_LARGEST = torch.finfo(torch.float32).max


def to_float8(x: Real, code: torch.dtype) -> Real:
    """x, float32, to nearest even; saturates."""
    largest = torch.finfo(code).max
    return x.clamp(-largest, largest).to(code)


def to_float4(x: Real) -> Real:
    """Pairs of e2m1 codes of x, float32, along its rows."""
    size = x.abs().clamp(max=6.0).nan_to_num(6.0)
    low, middle, high = (size * 2).round(), size.round() + 2, (size / 2).round() + 4
    code = torch.where(size < 2, low, torch.where(size < 4, middle, high)).to(torch.uint8)
    code |= (torch.signbit(x) & ~x.isnan()).to(torch.uint8) << 3
    return code[..., ::2] | code[..., 1::2] << 4


def by_tensor(x: Real, scale: Real, code: torch.dtype) -> Real:
    return to_float8(x.float() * scale.reciprocal(), code)


def _scaled_rows(x: Real, largest: float) -> Pair:
    x = x.float()
    scale = (x.abs().amax(-1) / largest).clamp_min(SMALLEST)
    return x * scale.reciprocal()[:, None], scale


def _e4m3_rows(x: Real) -> Pair:
    value, scale = _scaled_rows(x, 448.0)
    return to_float8(value, torch.float8_e4m3fn), scale


def _int8_rows(x: Real) -> Pair:
    value, scale = _scaled_rows(x, 127.0)
    return value.round().clamp(-128, 127).nan_to_num(0.0).to(torch.int8), scale


def _mx(x: Real, places: int, mantissa: int, *, up: bool) -> Pair:
    """(x over its scales, float32; scales). places, mantissa: of the largest code, 2^23 = 1."""
    blocks = in_blocks(x.float(), MX_BLOCK)
    amax = blocks.abs().amax(-1).clamp(max=_LARGEST)
    bits = amax.view(torch.int32)
    code = (bits >> 23) - places
    if up:
        code = code + ((bits & 0x7FFFFF) > mantissa)
    code = code.clamp_min(0)
    reciprocal = (254 - code << 23).view(torch.float32)
    code = code.masked_fill(amax.isnan(), 255).to(torch.uint8)
    value = (blocks * reciprocal[..., None]).where(~amax.isnan()[..., None], torch.nan)
    return value.flatten(-2), code.view(torch.float8_e8m0fnu)


def _mxfp8(x: Real, *, up: bool) -> Pair:
    value, scale = _mx(x, 8, 0x600000, up=up)
    return to_float8(value, torch.float8_e4m3fn), scale


def _mxfp4(x: Real, *, up: bool) -> Pair:
    value, scale = _mx(x, 2, 0x400000, up=up)
    return to_float4(value), scale


def nvfp4(x: Real, scale: Real) -> Pair:
    blocks = in_blocks(x.float(), NV_BLOCK)
    found = blocks.abs().amax(-1) * (1 / 6) * scale.reciprocal()
    scales = to_float8(found, torch.float8_e4m3fn)
    unit = scales.float()
    reciprocal = (unit * scale).reciprocal().masked_fill(unit == 0, 0.0)
    return to_float4((blocks * reciprocal[..., None]).flatten(-2)), scales


prepare = PerOperation(
    {
        "quantize_e4m3": Eager(partial(by_tensor, code=torch.float8_e4m3fn)),
        "quantize_e5m2": Eager(partial(by_tensor, code=torch.float8_e5m2)),
        "quantize_e4m3_rows": Eager(_e4m3_rows),
        "quantize_int8_rows": Eager(_int8_rows),
        "quantize_mxfp8_floor": Eager(partial(_mxfp8, up=False)),
        "quantize_mxfp8_up": Eager(partial(_mxfp8, up=True)),
        "quantize_mxfp4_floor": Eager(partial(_mxfp4, up=False)),
        "quantize_mxfp4_up": Eager(partial(_mxfp4, up=True)),
        "quantize_nvfp4": Eager(nvfp4),
    }
)
