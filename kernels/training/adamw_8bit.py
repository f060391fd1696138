"""AdamW with moments of 8 bits: float32 parameters and gradients, 16.0625 bytes a parameter.

The step is that of adamw.py, in float32. Moments are kept as codes, linear, with one float32 scale
for 256 elements of the arena, rows or not: m = code · scale with codes from -127 to 127, and of v
its root, sqrt(v) = code · scale with codes from 0 to 255, since v itself has twice as many orders
of magnitude as a gradient. New scales are the largest magnitude of the block over 127 or 255, at
least 2^-126; codes are rounded to nearest even. The step uses the moments before they are encoded.
Where a moment is not finite, neither is the scale of its block, and the codes of the block are 0.

Apart, both moments are decoded, all of AdamW is one kernel, and both are encoded: 48 bytes.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from ..dtypes import DType, float32, int8, uint8
from ..operation import Chain, Direction, Directions, Fill, Step, Tensor, operation, tensors
from ..shapes import ROWS, STEP_ROWS
from .adamw import decay, first_moment, second_moment, squares, step

Real = torch.Tensor

BLOCK = 256
LARGEST, LARGEST_ROOT = 127, 255
SMALLEST = torch.finfo(torch.float32).tiny
_SLACK = 2.0**-12
"""Moments are differences in float32: a small one is as uncertain as the largest is long."""


def blocks_of(x: Real) -> Real:
    """(blocks, 256), the last one filled with zeros."""
    return functional.pad(x.flatten(), (0, -x.numel() % BLOCK)).view(-1, BLOCK)


def decoded(codes: Real, scale: Real, dtype: torch.dtype) -> Real:
    return (blocks_of(codes).to(dtype) * scale[:, None]).flatten()[: codes.numel()].view_as(codes)


def encoded(x: Real, largest: int) -> tuple[Real, Real]:
    """(codes before they are rounded, scale of every block)"""
    blocks = blocks_of(x)
    scale = (blocks.abs().amax(-1) / largest).clamp_min(SMALLEST)
    codes = (blocks / scale[:, None]).nan_to_num(0.0, 0.0, 0.0)
    return codes.flatten()[: x.numel()].view_as(x), scale


def forward(p: Real, g: Real, m: Real, r: Real, m_scale: Real, r_scale: Real) -> tuple[Real, ...]:
    new_m = first_moment(g, decoded(m, m_scale, p.dtype))
    v = second_moment(g, decoded(r, r_scale, p.dtype).square())
    m_codes, new_m_scale = encoded(new_m, LARGEST)
    r_codes, new_r_scale = encoded(v.sqrt(), LARGEST_ROOT)
    return step(decay(p), new_m, v), m_codes, r_codes, new_m_scale, new_r_scale


def _integers(low: int, high: int) -> Fill:
    def fill(tensor: Tensor, generator: torch.Generator) -> Real:
        return torch.randint(
            low, high + 1, tensor.shape, generator=generator, device=generator.device
        )

    return fill


def _scales(largest: int) -> Fill:
    """So that decoded moments are around 1, and no power of two."""

    def fill(tensor: Tensor, generator: torch.Generator) -> Real:
        drawn = torch.rand(tensor.shape, generator=generator, device=generator.device)
        return (drawn + 0.5) / largest

    return fill


CHAIN = Chain(
    [
        Step("adamw_8bit_decode_m", {"q": "m", "scale": "m_scale", "y": "wide_m"}),
        Step("adamw_8bit_decode_v", {"q": "r", "scale": "r_scale", "y": "wide_v"}),
        Step(
            "adamw",
            {"p": "p", "g": "g", "m": "wide_m", "v": "wide_v"}
            | {"new_p": "new_p", "new_m": "new_wide_m", "new_v": "new_wide_v"},
        ),
        Step("adamw_8bit_encode_m", {"x": "new_wide_m", "q": "new_m", "scale": "new_m_scale"}),
        Step("adamw_8bit_encode_v", {"x": "new_wide_v", "q": "new_r", "scale": "new_r_scale"}),
    ]
)


@operation(shapes=ROWS, dtypes=[float32], chain=CHAIN)
def adamw_8bit(rows: int, columns: int, dtype: DType) -> Directions:
    """AdamW with linear 8-bit moments, one float32 scale for 256."""
    shape, blocks = (rows, columns), (-(-rows * columns // BLOCK),)
    p, g, new_p = tensors("p g new_p", shape, float32)
    m = Tensor("m", shape, int8, fill=_integers(-LARGEST, LARGEST))
    r = Tensor("r", shape, uint8, fill=_integers(0, LARGEST_ROOT))
    m_scale = Tensor("m_scale", blocks, float32, fill=_scales(LARGEST))
    r_scale = Tensor("r_scale", blocks, float32, fill=_scales(LARGEST_ROOT))
    new_m = Tensor("new_m", shape, int8, slack=_SLACK)
    new_r = Tensor("new_r", shape, uint8, slack=_SLACK)
    new_m_scale, new_r_scale = tensors("new_m_scale new_r_scale", blocks, float32)
    return Directions(
        Direction(
            [p, g, m, r, m_scale, r_scale],
            [new_p, new_m, new_r, new_m_scale, new_r_scale],
            forward,
            separable=False,
        )
    )


def _codes(rows: int, columns: int, *, root: bool) -> tuple[Tensor, Tensor]:
    """Codes of a moment and their scales, as inputs and as outputs."""
    blocks = (-(-rows * columns // BLOCK),)
    low, most, dtype = (0, LARGEST_ROOT, uint8) if root else (-LARGEST, LARGEST, int8)
    q = Tensor("q", (rows, columns), dtype, fill=_integers(low, most), slack=_SLACK)
    return q, Tensor("scale", blocks, float32, fill=_scales(most))


def _decode(rows: int, columns: int, *, root: bool) -> Directions:
    def forward(q: Real, scale: Real) -> Real:
        moment = decoded(q, scale, scale.dtype)
        return moment.square() if root else moment

    y = Tensor("y", (rows, columns), float32)
    q, scale = _codes(rows, columns, root=root)
    return Directions(Direction([q, scale], [y], forward, separable=False))


def _encode(rows: int, columns: int, *, root: bool) -> Directions:
    def forward(x: Real) -> tuple[Real, Real]:
        return encoded(x.sqrt(), LARGEST_ROOT) if root else encoded(x, LARGEST)

    x = Tensor("x", (rows, columns), float32, fill=squares if root else None)
    outputs = _codes(rows, columns, root=root)
    return Directions(Direction([x], outputs, forward, separable=False))


@operation(shapes=STEP_ROWS, dtypes=[float32], tier=3)
def adamw_8bit_decode_m(rows: int, columns: int, dtype: DType) -> Directions:
    """A first moment from its 8-bit codes: y = code · scale."""
    return _decode(rows, columns, root=False)


@operation(shapes=STEP_ROWS, dtypes=[float32], tier=3)
def adamw_8bit_decode_v(rows: int, columns: int, dtype: DType) -> Directions:
    """A second moment from the 8-bit codes of its root: y = (code · scale)²."""
    return _decode(rows, columns, root=True)


@operation(shapes=STEP_ROWS, dtypes=[float32], tier=3)
def adamw_8bit_encode_m(rows: int, columns: int, dtype: DType) -> Directions:
    """8-bit codes of a first moment, and a scale for 256 of them."""
    return _encode(rows, columns, root=False)


@operation(shapes=STEP_ROWS, dtypes=[float32], tier=3)
def adamw_8bit_encode_v(rows: int, columns: int, dtype: DType) -> Directions:
    """8-bit codes of the root of a second moment, and a scale for 256 of them."""
    return _encode(rows, columns, root=True)
