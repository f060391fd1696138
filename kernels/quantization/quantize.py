"""Codes of 8 and 4 bits, and the scales they are multiples of: x is about code · scale.

Policies, for every format here
- A value is multiplied by the float32 reciprocal of its scale and rounded to nearest even. Beyond
  the largest code (e4m3 448, e5m2 57344, e2m1 6) it saturates, infinity too. NaN stays NaN, is 6 in
  e2m1 and 0 in int8, which have none.
- A scale that is found is the largest magnitude over the largest code. One found in float32 is at
  least 2^-126, so that its reciprocal is finite: a row of zeros has codes of zero.
- MX scales (OCP Microscaling 1.0) are powers of two, one per 32 elements. `floor` is the rounding
  that its text suggests: the largest power of two in the block over the largest of the format
  (2^8, 2^2), so that the largest elements may saturate. `up` is what NVIDIA's libraries do: the
  smallest power of two under which none does. Infinity counts as the largest float32; NaN makes the
  scale NaN; zeros have the scale 2^-127.
- nvfp4 has a float32 scale, given, and one in e4m3 per 16 elements, found: amax · (1/6) / given. A
  block whose scale rounds to zero has codes of zero.

Half-byte codes lie in pairs, the first in the low half. Scales lie in rows beside their blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ..dtypes import (
    DType,
    bfloat16,
    float4_pair,
    float8_e4m3fn,
    float8_e5m2,
    float8_e8m0fnu,
    float16,
    float32,
    int8,
)
from ..operation import Direction, Directions, Fill, Tensor, operation
from ..shapes import BLOCKED_ROWS, QUANTIZED_ROWS

Real = torch.Tensor
Pair = tuple[torch.Tensor, torch.Tensor]

HALVES = (float16, bfloat16)
"""What layers hand over; statistics and scales are float32."""

SMALLEST = torch.finfo(torch.float32).tiny
_LARGEST = torch.finfo(torch.float32).max
MX_BLOCK, NV_BLOCK = 32, 16
E4M3_SCALE, E5M2_SCALE, NV_SCALE = 0.0101, 9.1e-5, 0.00203
"""Given scales that codes of a standard normal need, and no power of two."""


def constant(value: float) -> Fill:
    """A tensor of one number."""
    return lambda tensor, generator: torch.full(tensor.shape, value, device=generator.device)


def given_scale(value: float) -> Tensor:
    return Tensor("scale", (1,), float32, fill=constant(value))


def require_blocks(columns: int, block: int) -> None:
    """Raise ValueError where blocks do not fill the rows."""
    if columns % block:
        raise ValueError(f"columns must be a multiple of the block of {block}; got {columns}")


def in_blocks(x: Real, block: int) -> Real:
    """Rows cut into blocks: [..., blocks, block]."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // block, block)


def by_tensor(x: Real, scale: Real) -> Real:
    """x / scale, by float32 arithmetic."""
    return (x.float() * scale.float().reciprocal()).double()


def by_row(x: Real, largest: float) -> Pair:
    """(x / scale, scale): one float32 scale a row."""
    scale = (x.float().abs().amax(-1) / largest).clamp_min(SMALLEST)
    return by_tensor(x, scale[:, None]), scale.double()


def mx_scale(amax: Real, code: DType, *, up: bool) -> Real:
    """The power of two, float64, of blocks whose largest magnitudes are `amax`."""
    mantissa, exponent = torch.frexp(amax.double().clamp(max=_LARGEST))
    largest, place = torch.frexp(torch.tensor(code.largest))
    found = exponent - place
    if up:
        found = found + (mantissa > largest)
    found = torch.where(amax == 0, -127, found.clamp(-127, 127))
    return torch.ldexp(torch.ones_like(amax), found).where(~amax.isnan(), amax)


def by_mx_block(x: Real, code: DType, *, up: bool) -> Pair:
    """(x / scale, scale): one power of two per 32 elements."""
    blocks = in_blocks(x, MX_BLOCK)
    scale = mx_scale(blocks.abs().amax(-1), code, up=up)
    return (blocks / scale[..., None]).flatten(-2), scale


def nv_scale(x: Real, given: Real) -> Real:
    """What is rounded to the e4m3 scales of blocks, float32 arithmetic."""
    amax = in_blocks(x.float(), NV_BLOCK).abs().amax(-1)
    return (amax * (1 / 6) * given.float().reciprocal()).double()


def by_nv_block(x: Real, given: Real) -> Pair:
    """(x / (scale · given), what is rounded to scale)."""
    unrounded = nv_scale(x, given)
    scale = float8_e4m3fn.rounded(unrounded).float()
    reciprocal = (scale * given.float()).reciprocal().masked_fill(scale == 0, 0)
    blocks = in_blocks(x.float(), NV_BLOCK)
    return (blocks * reciprocal[..., None]).flatten(-2).double(), unrounded


def _forward(
    rows: int, columns: int, dtype: DType, code: DType, reference: Callable[..., Real | Pair]
) -> Direction:
    x = Tensor("x", (rows, columns), dtype)
    q = Tensor("q", (rows, columns // code.numbers), code)
    return Direction(reads=[x], writes=[q], reference=reference)


def _by_tensor(rows: int, columns: int, dtype: DType, code: DType, scale: float) -> Directions:
    made = _forward(rows, columns, dtype, code, by_tensor)
    return Directions(replace(made, reads=[*made.reads, given_scale(scale)]))


def _by_mx_block(rows: int, columns: int, dtype: DType, code: DType, *, up: bool) -> Directions:
    require_blocks(columns, MX_BLOCK)

    def reference(x: Real) -> Pair:
        return by_mx_block(x, code, up=up)

    made = _forward(rows, columns, dtype, code, reference)
    scale = Tensor("scales", (rows, columns // MX_BLOCK), float8_e8m0fnu)
    return Directions(replace(made, writes=[*made.writes, scale]))


@operation(shapes=QUANTIZED_ROWS, dtypes=HALVES)
def quantize_e4m3(rows: int, columns: int, dtype: DType) -> Directions:
    """q = x / scale in e4m3, one given scale; saturates."""
    return _by_tensor(rows, columns, dtype, float8_e4m3fn, E4M3_SCALE)


@operation(shapes=QUANTIZED_ROWS, dtypes=HALVES)
def quantize_e5m2(rows: int, columns: int, dtype: DType) -> Directions:
    """q = x / scale in e5m2, one given scale; saturates."""
    return _by_tensor(rows, columns, dtype, float8_e5m2, E5M2_SCALE)


@operation(shapes=QUANTIZED_ROWS, dtypes=HALVES)
def quantize_e4m3_rows(rows: int, columns: int, dtype: DType) -> Directions:
    """q = x / scale in e4m3, scale = amax / 448 of each row."""
    made = _forward(rows, columns, dtype, float8_e4m3fn, lambda x: by_row(x, float8_e4m3fn.largest))
    scales = Tensor("scales", (rows,), float32)
    return Directions(replace(made, writes=[*made.writes, scales]))


@operation(shapes=QUANTIZED_ROWS, dtypes=HALVES)
def quantize_int8_rows(rows: int, columns: int, dtype: DType) -> Directions:
    """q = x / scale in int8, scale = amax / 127 of each row."""

    def reference(x: Real) -> Pair:
        value, scale = by_row(x, 127.0)
        return value.nan_to_num(0.0).round().clamp(-128, 127).to(torch.int8), scale

    made = _forward(rows, columns, dtype, int8, reference)
    scales = Tensor("scales", (rows,), float32)
    return Directions(replace(made, writes=[*made.writes, scales]))


@operation(shapes=BLOCKED_ROWS, dtypes=HALVES)
def quantize_mxfp8_floor(rows: int, columns: int, dtype: DType) -> Directions:
    """q = x / scale in e4m3, scale = 2^(floor(log2 amax) - 8) of 32 elements; saturates."""
    return _by_mx_block(rows, columns, dtype, float8_e4m3fn, up=False)


@operation(shapes=BLOCKED_ROWS, dtypes=HALVES)
def quantize_mxfp8_up(rows: int, columns: int, dtype: DType) -> Directions:
    """q = x / scale in e4m3, scale = 2^ceil(log2(amax / 448)) of 32 elements."""
    return _by_mx_block(rows, columns, dtype, float8_e4m3fn, up=True)


@operation(shapes=BLOCKED_ROWS, dtypes=HALVES)
def quantize_mxfp4_floor(rows: int, columns: int, dtype: DType) -> Directions:
    """q = x / scale in e2m1, scale = 2^(floor(log2 amax) - 2) of 32 elements; saturates."""
    return _by_mx_block(rows, columns, dtype, float4_pair, up=False)


@operation(shapes=BLOCKED_ROWS, dtypes=HALVES)
def quantize_mxfp4_up(rows: int, columns: int, dtype: DType) -> Directions:
    """q = x / scale in e2m1, scale = 2^ceil(log2(amax / 6)) of 32 elements."""
    return _by_mx_block(rows, columns, dtype, float4_pair, up=True)


@operation(shapes=BLOCKED_ROWS, dtypes=HALVES)
def quantize_nvfp4(rows: int, columns: int, dtype: DType) -> Directions:
    """q = x / (scales · scale) in e2m1, scales in e4m3 of 16 elements, scale given."""
    require_blocks(columns, NV_BLOCK)
    made = _forward(rows, columns, dtype, float4_pair, by_nv_block)
    scales = Tensor("scales", (rows, columns // NV_BLOCK), float8_e4m3fn)
    return Directions(
        replace(made, reads=[*made.reads, given_scale(NV_SCALE)], writes=[*made.writes, scales])
    )
