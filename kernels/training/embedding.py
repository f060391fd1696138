"""Embedding: rows of a table by token, and the gradient of the rows that occur.

Tokens are drawn as words are, by Zipf's law, from the extents alone: the same at every seed, so
that the U rows that occur, each read once, can be counted. The first token is the last row of the
table and the last token the first row. A token that is no row gives NaN; PyTorch stops the device.

Backward adds to a gradient that is there, of the U rows alone and in the order of rows: the values
of a coalesced sparse gradient (`sparse=True`). The sum is written beside it. What depends on tokens
alone is made before the clock starts, once for all who share them: `order`, the tokens sorted by
row, stable, and `slots`, for each of them which of the U rows it is. Additions are in float32 and
in an order that the tokens alone decide.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from ..dtypes import FLOATS, DType, int32, int64
from ..operation import Direction, Directions, Fill, Tensor, operation
from ..shapes import TABLES

Real = torch.Tensor


@lru_cache(maxsize=8)
def index_of(tokens: int, vocabulary: int) -> torch.Tensor:
    """int64 (tokens,): the row of every token. Raises ValueError where there is no row."""
    if not vocabulary:
        raise ValueError("there is no row to take: vocabulary is 0")
    generator = torch.Generator().manual_seed(vocabulary)
    drawn = torch.rand(tokens, generator=generator, dtype=torch.float64)
    index = torch.pow(float(vocabulary), drawn).long() - 1  # rank k with probability ~ 1 / k
    index[:1], index[1:][-1:] = vocabulary - 1, 0
    return index


@lru_cache(maxsize=8)
def sorted_tokens(tokens: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """(order, slots, U)."""
    index, order = index_of(tokens, vocabulary).sort(stable=True)
    changes = index.diff(prepend=index.new_full((1,), -1)) != 0
    return order, (changes.cumsum(0) - 1).int(), int(changes.sum())


def _given(values: torch.Tensor) -> Fill:
    return lambda tensor, generator: values.to(generator.device)


def forward(index: torch.Tensor, table: Real) -> Real:
    there = (index >= 0) & (index < len(table))
    return torch.where(there[:, None], table[index.clamp(0, len(table) - 1)], torch.nan)


def backward(dy: Real, order: torch.Tensor, slots: torch.Tensor, before: Real) -> Real:
    return before.index_add(0, slots.long(), dy[order])


@operation(shapes=TABLES, dtypes=FLOATS, tier=3)
def embedding(tokens: int, vocabulary: int, columns: int, dtype: DType) -> Directions:
    """y[t] = table[index[t]]; backward adds dy to the gradient of the rows that occur."""
    order, slots, rows = sorted_tokens(tokens, vocabulary)
    index = Tensor("index", (tokens,), int64, fill=_given(index_of(tokens, vocabulary)))
    table = Tensor("table", (vocabulary, columns), dtype, moved=rows * columns)
    y, dy = (Tensor(name, (tokens, columns), dtype) for name in ("y", "dy"))
    before = Tensor("before", (rows, columns), dtype)
    most = int(slots.bincount().max()) if tokens else 1  # of the most frequent word
    dtable = Tensor("dtable", (rows, columns), dtype, reduces=most)
    sorted_ = [
        Tensor("order", (tokens,), int64, fill=_given(order)),
        Tensor("slots", (tokens,), int32, fill=_given(slots)),
    ]
    return Directions(
        forward=Direction([index, table], [y], forward),
        backward=Direction([dy, *sorted_, before], [dtable], backward, separable=False),
    )
