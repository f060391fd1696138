"""Rotary position embedding: every pair of a head's elements is turned by an angle.

(a, b) becomes (a · cos − b · sin, b · cos + a · sin), for query and key heads in one pass. The two
conventions pair different elements: `rope_half` pairs i with i + width / 2 (GPT-NeoX, Llama as
Hugging Face stores it), `rope_interleaved` pairs 2i with 2i + 1 (RoFormer, GPT-J, Llama as Meta
stores it). The tables cos and sin are float32 whatever the heads are, one row a position, one
column a pair; they are read once for all heads, and the result is rounded once. Backward turns the
gradients back, by −angle.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..dtypes import FLOATS, DType, float32
from ..operation import Direction, Directions, Tensor, operation, tensors
from ..shapes import ROTATED_HEADS

Real = torch.Tensor
Turn = Callable[[Real, Real, Real], Real]

THETA = 500_000.0
"""Base of the frequencies, as in Llama-3."""


def _table(name: str, positions: int, width: int, of: Callable[[Real], Real]) -> Tensor:
    def fill(tensor: Tensor, generator: torch.Generator) -> Real:
        positions, pairs = tensor.shape
        device = generator.device
        position = torch.arange(positions, dtype=torch.float64, device=device)
        pair = torch.arange(pairs, dtype=torch.float64, device=device)
        return of(position[:, None] * THETA ** (-pair / max(pairs, 1)))

    return Tensor(name, (positions, width // 2), float32, fill=fill)


def _half(x: Real, cos: Real, sin: Real) -> Real:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _interleaved(x: Real, cos: Real, sin: Real) -> Real:
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def _rope(
    positions: int, q_heads: int, k_heads: int, width: int, dtype: DType, turn: Turn
) -> Directions:
    if width % 2:
        raise ValueError(f"a head is made of pairs: its width is even; got {width}")

    def forward(q: Real, k: Real, cos: Real, sin: Real) -> tuple[Real, Real]:
        cos, sin = cos[:, None], sin[:, None]
        return turn(q, cos, sin), turn(k, cos, sin)

    def backward(dq: Real, dk: Real, cos: Real, sin: Real) -> tuple[Real, Real]:
        return forward(dq, dk, cos, -sin)

    shape = (positions, q_heads, width)
    q, rotated_q, drotated_q, dq = tensors("q rotated_q drotated_q dq", shape, dtype, reduces=2)
    shape = (positions, k_heads, width)
    k, rotated_k, drotated_k, dk = tensors("k rotated_k drotated_k dk", shape, dtype, reduces=2)
    tables = [
        _table("cos", positions, width, torch.cos),
        _table("sin", positions, width, torch.sin),
    ]
    return Directions(
        forward=Direction([q, k, *tables], [rotated_q, rotated_k], forward),
        backward=Direction([drotated_q, drotated_k, *tables], [dq, dk], backward),
    )


@operation(shapes=ROTATED_HEADS, dtypes=FLOATS)
def rope_half(positions: int, q_heads: int, k_heads: int, width: int, dtype: DType) -> Directions:
    """Rotary embedding of queries and keys; element i is paired with i + width / 2."""
    return _rope(positions, q_heads, k_heads, width, dtype, _half)


@operation(shapes=ROTATED_HEADS, dtypes=FLOATS)
def rope_interleaved(
    positions: int, q_heads: int, k_heads: int, width: int, dtype: DType
) -> Directions:
    """Rotary embedding of queries and keys; element 2i is paired with 2i + 1."""
    return _rope(positions, q_heads, k_heads, width, dtype, _interleaved)
