"""RMSNorm, then quantization, with or without a residual add in front.

The arithmetic is that of the steps, roundings between them included: what is quantized is the norm
as its dtype stores it. No rstd is saved: quantized activations are for inference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ..dtypes import DType, float4_pair, float8_e4m3fn
from ..normalization import rms_norm as norm
from ..operation import Chain, Direction, Directions, Step, Tensor, operation, tensors
from ..quantization.quantize import (
    E4M3_SCALE,
    HALVES,
    NV_BLOCK,
    NV_SCALE,
    by_tensor,
    given_scale,
    nv_scale,
    require_blocks,
)
from ..shapes import BLOCKED_ROWS, QUANTIZED_ROWS, layer
from ..tolerance import tolerance

Real = torch.Tensor
Reals = tuple[torch.Tensor, ...]
Quantization = Callable[[Real, Real], Reals]

_WHOLE_ROWS = (
    *(shape for shape in BLOCKED_ROWS if shape.kind != "ragged"),
    layer(rows=8192, columns=2880),  # gpt-oss, whose rows fill no power of two
)
"""Rows that begin where vectors do, as blocks shared by lanes have to."""

_TENSORWISE = {"x": "y", "scale": "scale", "q": "q"}
_BLOCKWISE = {**_TENSORWISE, "scales": "scales"}


def codes_by_tensor(y: Real, scale: Real) -> Reals:
    return (by_tensor(y, scale),)


def codes_by_nv_block(y: Real, scale: Real) -> Reals:
    """Codes times the scales of their blocks, and these before they are rounded."""
    return y / scale, nv_scale(y, scale)


def quantized(
    rows: int, columns: int, y: Tensor, *, blocks: bool
) -> tuple[list[Tensor], Tensor, Quantization]:
    """(outputs, the given scale, arithmetic) of quantizing y, an intermediate of a fused kernel."""
    slack = tolerance(y)
    if not blocks:
        q = Tensor("q", (rows, columns), float8_e4m3fn, slack=slack)
        return [q], given_scale(E4M3_SCALE), codes_by_tensor
    require_blocks(columns, NV_BLOCK)
    q = Tensor("q", (rows, columns // 2), float4_pair, slack=slack, scaled_by="scales")
    scales = Tensor("scales", (rows, columns // NV_BLOCK), float8_e4m3fn, slack=slack)
    return [q, scales], given_scale(NV_SCALE), codes_by_nv_block


def _norm(rows: int, columns: int, dtype: DType, *, blocks: bool) -> Directions:
    (y,) = tensors("y", (rows, columns), dtype, reduces=columns)
    writes, scale, quantize = quantized(rows, columns, y, blocks=blocks)

    def forward(x: Real, weight: Real, scale: Real) -> Reals:
        return quantize(dtype.rounded(norm.forward(x, weight)[0]), scale)

    x, weight = Tensor("x", (rows, columns), dtype), Tensor("weight", (columns,), dtype)
    return Directions(Direction(reads=[x, weight, scale], writes=writes, reference=forward))


def _add_norm(rows: int, columns: int, dtype: DType, *, blocks: bool) -> Directions:
    alone = _norm(rows, columns, dtype, blocks=blocks).forward
    x, residual, h = tensors("x residual h", (rows, columns), dtype)

    def forward(x: Real, residual: Real, weight: Real, scale: Real) -> Reals:
        h = dtype.rounded(x + residual)
        codes = alone.reference(h, weight, scale)
        return (h, codes) if isinstance(codes, torch.Tensor) else (h, *codes)

    reads, writes = [x, residual, *alone.reads[1:]], [h, *alone.writes]
    return Directions(replace(alone, reads=reads, writes=writes, reference=forward))


def _chain(quantize: str, operands: dict[str, str]) -> Chain:
    norm_step = Step("rms_norm", {"x": "x", "weight": "weight", "y": "y"})
    return Chain(forward=[norm_step, Step(quantize, operands)])


def _chains(quantize: str, operands: dict[str, str]) -> dict[str, Chain]:
    """Add, norm and quantization apart; and the first two fused, as many libraries have them."""
    add = Step("add", {"a": "x", "b": "residual", "y": "h"})
    norm_step = Step("rms_norm", {"x": "h", "weight": "weight", "y": "y"})
    both = {"x": "x", "residual": "residual", "weight": "weight", "h": "h", "y": "y"}
    last = Step(quantize, operands)
    return {
        "unfused": Chain(forward=[add, norm_step, last]),
        "norm_fused": Chain(forward=[Step("add_rms_norm", both), last]),
    }


@operation(shapes=QUANTIZED_ROWS, dtypes=HALVES, chain=_chain("quantize_e4m3", _TENSORWISE))
def rms_norm_quantize_e4m3(rows: int, columns: int, dtype: DType) -> Directions:
    """q = rms_norm(x) / scale in e4m3, one given scale; saturates."""
    return _norm(rows, columns, dtype, blocks=False)


@operation(shapes=_WHOLE_ROWS, dtypes=HALVES, chain=_chain("quantize_nvfp4", _BLOCKWISE))
def rms_norm_quantize_nvfp4(rows: int, columns: int, dtype: DType) -> Directions:
    """q = rms_norm(x) / (scales · scale) in e2m1, scales in e4m3 of 16 elements, scale given."""
    return _norm(rows, columns, dtype, blocks=True)


@operation(shapes=QUANTIZED_ROWS, dtypes=HALVES, chains=_chains("quantize_e4m3", _TENSORWISE))
def add_rms_norm_quantize_e4m3(rows: int, columns: int, dtype: DType) -> Directions:
    """h = x + residual, q = rms_norm(h) / scale in e4m3, one given scale; saturates."""
    return _add_norm(rows, columns, dtype, blocks=False)


@operation(shapes=_WHOLE_ROWS, dtypes=HALVES, chains=_chains("quantize_nvfp4", _BLOCKWISE))
def add_rms_norm_quantize_nvfp4(rows: int, columns: int, dtype: DType) -> Directions:
    """h = x + residual, q = rms_norm(h) / (scales · scale) in e2m1, scales in e4m3 of 16."""
    return _add_norm(rows, columns, dtype, blocks=True)
