"""Numbers from codes of 8 and 4 bits: y = code · scale, rounded once. Formats: quantize.py."""

from __future__ import annotations

import torch

from ..dtypes import DType, float4_pair, float8_e4m3fn, float8_e5m2, float8_e8m0fnu, float32, int8
from ..operation import Direction, Directions, Fill, Reference, Tensor, operation
from ..shapes import BLOCKED_ROWS, QUANTIZED_ROWS
from .quantize import (
    E4M3_SCALE,
    E5M2_SCALE,
    HALVES,
    MX_BLOCK,
    NV_BLOCK,
    NV_SCALE,
    given_scale,
    in_blocks,
    require_blocks,
)

Real = torch.Tensor


def _codes(largest: float) -> Fill:
    """Normal, with its far ends at the largest code."""

    def fill(tensor: Tensor, generator: torch.Generator) -> Real:
        values = torch.empty(tensor.shape, device=generator.device)
        values.normal_(std=largest / 4, generator=generator)
        return values.clamp_(-largest, largest)

    return fill


def _integers(low: int, high: int) -> Fill:
    """All codes alike, from low to below high."""
    return lambda tensor, generator: torch.randint(
        low, high, tensor.shape, generator=generator, device=generator.device
    )


def _powers(tensor: Tensor, generator: torch.Generator) -> Real:
    return torch.exp2(_integers(-6, 7)(tensor, generator).float())


def _uniform(low: float, high: float) -> Fill:
    def fill(tensor: Tensor, generator: torch.Generator) -> Real:
        values = torch.empty(tensor.shape, device=generator.device)
        return values.uniform_(low, high, generator=generator)

    return fill


_PAIRS = _integers(0, 256)


def _forward(
    rows: int,
    columns: int,
    dtype: DType,
    code: DType,
    fill: Fill,
    scales: list[Tensor],
    reference: Reference,
) -> Directions:
    q = Tensor("q", (rows, columns // code.numbers), code, fill=fill)
    y = Tensor("y", (rows, columns), dtype)
    return Directions(Direction(reads=[q, *scales], writes=[y], reference=reference))


def _of_rows(q: Real, scales: Real) -> Real:
    return q.double() * scales[:, None]


def _of_blocks(q: Real, scales: Real) -> Real:
    """q: numbers; scales: one for as many of them as divide the row."""
    block = q.shape[-1] // scales.shape[-1]
    return (in_blocks(q, block) * scales[..., None]).flatten(-2)


def _of_pairs(q: Real, scales: Real) -> Real:
    return _of_blocks(float4_pair.decoded(q), scales)


def _of_nv_pairs(q: Real, scales: Real, scale: Real) -> Real:
    return _of_pairs(q, scales) * scale


@operation(shapes=QUANTIZED_ROWS, dtypes=HALVES)
def dequantize_e4m3(rows: int, columns: int, dtype: DType) -> Directions:
    """y = q · scale, q in e4m3, one scale."""
    scales = [given_scale(E4M3_SCALE)]
    return _forward(
        rows, columns, dtype, float8_e4m3fn, _codes(448.0), scales, lambda q, scale: q * scale
    )


@operation(shapes=QUANTIZED_ROWS, dtypes=HALVES)
def dequantize_e5m2(rows: int, columns: int, dtype: DType) -> Directions:
    """y = q · scale, q in e5m2, one scale."""
    scales = [given_scale(E5M2_SCALE)]
    return _forward(
        rows, columns, dtype, float8_e5m2, _codes(57344.0), scales, lambda q, scale: q * scale
    )


@operation(shapes=QUANTIZED_ROWS, dtypes=HALVES)
def dequantize_e4m3_rows(rows: int, columns: int, dtype: DType) -> Directions:
    """y = q · scale, q in e4m3, a scale for each row."""
    scales = [Tensor("scales", (rows,), float32, fill=_uniform(0.001, 0.02))]
    return _forward(rows, columns, dtype, float8_e4m3fn, _codes(448.0), scales, _of_rows)


@operation(shapes=QUANTIZED_ROWS, dtypes=HALVES)
def dequantize_int8_rows(rows: int, columns: int, dtype: DType) -> Directions:
    """y = q · scale, q in int8, a scale for each row."""
    scales = [Tensor("scales", (rows,), float32, fill=_uniform(0.004, 0.08))]
    return _forward(rows, columns, dtype, int8, _integers(-127, 128), scales, _of_rows)


@operation(shapes=BLOCKED_ROWS, dtypes=HALVES)
def dequantize_mxfp8(rows: int, columns: int, dtype: DType) -> Directions:
    """y = q · scale, q in e4m3, scale a power of two for 32 elements."""
    require_blocks(columns, MX_BLOCK)
    scales = [Tensor("scales", (rows, columns // MX_BLOCK), float8_e8m0fnu, fill=_powers)]
    return _forward(rows, columns, dtype, float8_e4m3fn, _codes(448.0), scales, _of_blocks)


@operation(shapes=BLOCKED_ROWS, dtypes=HALVES)
def dequantize_mxfp4(rows: int, columns: int, dtype: DType) -> Directions:
    """y = q · scale, q in e2m1, scale a power of two for 32 elements."""
    require_blocks(columns, MX_BLOCK)
    scales = [Tensor("scales", (rows, columns // MX_BLOCK), float8_e8m0fnu, fill=_powers)]
    return _forward(rows, columns, dtype, float4_pair, _PAIRS, scales, _of_pairs)


@operation(shapes=BLOCKED_ROWS, dtypes=HALVES)
def dequantize_nvfp4(rows: int, columns: int, dtype: DType) -> Directions:
    """y = q · scales · scale, q in e2m1, scales in e4m3 for 16 elements, one scale for all."""
    require_blocks(columns, NV_BLOCK)
    blocks = (rows, columns // NV_BLOCK)
    scales = [Tensor("scales", blocks, float8_e4m3fn, fill=_uniform(1.0, 448.0))]
    scales.append(given_scale(NV_SCALE))
    return _forward(rows, columns, dtype, float4_pair, _PAIRS, scales, _of_nv_pairs)
