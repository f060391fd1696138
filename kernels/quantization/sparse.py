"""2:4 sparsity of 16-bit rows: of every four neighbours the two largest in magnitude are kept.

Of equal magnitudes the first is kept; NaN is larger than any number. Compressed, a row is the kept
values in order, and four bits for every four elements: their places, two bits each, the first in
the low half; two such nibbles a byte, the first in the low half. Rows have whole bytes of them:
columns divisible by 8. What is compressed may be pruned already: zeros then make room by the same
rule.
"""

from __future__ import annotations

import torch

from ..dtypes import DType, uint8
from ..operation import Chain, Direction, Directions, Step, Tensor, operation
from ..shapes import BLOCKED_ROWS
from .quantize import HALVES, in_blocks, require_blocks

Real = torch.Tensor

GROUP, BYTE = 4, 8
"""Elements that are pruned together, and elements whose places fill a byte."""


def kept(x: Real) -> tuple[Real, Real]:
    """(values, places) of what is kept in every group, in order, [..., groups, 2]."""
    groups = in_blocks(x, GROUP)
    order = groups.abs().sort(dim=-1, descending=True, stable=True).indices
    places = order[..., :2].sort(-1).values
    return groups.gather(-1, places), places


def pruned(x: Real) -> Real:
    values, places = kept(x)
    groups = in_blocks(x.new_zeros(x.shape), GROUP)
    return groups.scatter(-1, places, values).flatten(-2)


def compressed(x: Real) -> tuple[Real, Real]:
    values, places = kept(x)
    nibbles = (places[..., 0] | places[..., 1] << 2).to(torch.uint8)
    return values.flatten(-2), nibbles[..., ::2] | nibbles[..., 1::2] << 4


def _pruned_normal(tensor: Tensor, generator: torch.Generator) -> Real:
    values = torch.empty(tensor.shape, device=generator.device)
    return pruned(values.normal_(generator=generator))


def _compress(rows: int, columns: int, x: Tensor) -> Directions:
    values = Tensor("values", (rows, columns // 2), x.dtype)
    places = Tensor("places", (rows, columns // BYTE), uint8)
    return Directions(Direction(reads=[x], writes=[values, places], reference=compressed))


@operation(shapes=BLOCKED_ROWS, dtypes=HALVES, tier=3)
def prune_2_4(rows: int, columns: int, dtype: DType) -> Directions:
    """y = x with the two smaller of every four elements zero."""
    require_blocks(columns, BYTE)
    x, y = (Tensor(name, (rows, columns), dtype) for name in ("x", "y"))
    return Directions(Direction(reads=[x], writes=[y], reference=pruned))


@operation(shapes=BLOCKED_ROWS, dtypes=HALVES, tier=3)
def compress_2_4(rows: int, columns: int, dtype: DType) -> Directions:
    """values, places = the two of every four elements that pruning has left."""
    require_blocks(columns, BYTE)
    return _compress(rows, columns, Tensor("x", (rows, columns), dtype, fill=_pruned_normal))


CHAIN = Chain(
    forward=[
        Step("prune_2_4", {"x": "x", "y": "dense"}),
        Step("compress_2_4", {"x": "dense", "values": "values", "places": "places"}),
    ]
)


@operation(shapes=BLOCKED_ROWS, dtypes=HALVES, tier=3, chain=CHAIN)
def prune_compress_2_4(rows: int, columns: int, dtype: DType) -> Directions:
    """values, places = the two larger of every four elements."""
    require_blocks(columns, BYTE)
    return _compress(rows, columns, Tensor("x", (rows, columns), dtype))
