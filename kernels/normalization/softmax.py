"""Softmax over rows, forward and backward from its own output.

A row of nothing but -inf is NaN, as in PyTorch; so is every row that holds a NaN or +inf.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType, uint8
from ..long_rows import reread
from ..operation import Direction, Directions, Reference, Tensor, operation, tensors
from ..shapes import ROWS, SQUARES

SCALE = 0.125
"""Of the scores: 1 / sqrt(64), a head of 64 elements."""


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def softmax(rows: int, columns: int, dtype: DType) -> Directions:
    """Softmax over rows: y = exp(x - max(x)) / sum(exp(x - max(x)))."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    return _directions(rows, columns, dtype, forward, _backward)


@operation(shapes=ROWS, dtypes=FLOATS, tier=2)
def log_softmax(rows: int, columns: int, dtype: DType) -> Directions:
    """Logarithm of softmax over rows: y = x - max(x) - log(sum(exp(x - max(x))))."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x, -1)

    def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return dy - y.exp() * dy.sum(-1, keepdim=True)

    return _directions(rows, columns, dtype, forward, backward)


@operation(shapes=ROWS, dtypes=FLOATS, tier=2)
def scaled_masked_softmax(rows: int, columns: int, dtype: DType) -> Directions:
    """Softmax of scaled scores where a mask is set: y = softmax(x / 8 where mask, else -inf).

    A mask of 1 takes part, as True does in `torch.nn.functional.scaled_dot_product_attention`; one
    byte an element. A row without any is NaN, as in `torch.softmax`, and so is its gradient.
    """

    def forward(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x * SCALE).masked_fill(mask == 0, -torch.inf), -1)

    def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _backward(dy, y) * SCALE

    mask = Tensor("mask", (rows, columns), uint8, fill=_attended)
    return _directions(rows, columns, dtype, forward, backward, mask)


@operation(shapes=SQUARES, dtypes=FLOATS, tier=2)
def causal_softmax(matrices: int, columns: int, dtype: DType) -> Directions:
    """Softmax of the lower triangles of square matrices: row i takes part up to column i.

    What lies above the diagonal is never read: 0 in y and in dx, whatever dy holds there.
    """
    shape = (matrices, columns, columns)
    lower = matrices * columns * (columns + 1) // 2

    def above(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.masked_fill(above(x), -torch.inf), -1)

    def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        dx = _backward(dy.masked_fill(above(dy), 0), y)
        return dx.masked_fill(above(dy), 0)

    x = Tensor("x", shape, dtype, moved=lower)
    dy = Tensor("dy", shape, dtype, moved=lower)
    y, dx = tensors("y dx", shape, dtype, reduces=columns)
    # Backward reads the lower half of the y that forward writes whole.
    y_lower = Tensor("y", shape, dtype, moved=lower)
    return Directions(
        forward=reread(Direction(reads=[x], writes=[y], reference=forward), x),
        backward=reread(
            Direction(reads=[dy, y_lower], writes=[dx], reference=backward), dy, y_lower
        ),
    )


def _directions(
    rows: int,
    columns: int,
    dtype: DType,
    forward: Reference,
    backward: Reference,
    *masks: Tensor,
) -> Directions:
    x, dy = tensors("x dy", (rows, columns), dtype)
    y, dx = tensors("y dx", (rows, columns), dtype, reduces=columns)
    return Directions(
        forward=reread(
            Direction(reads=[x, *masks], writes=[y], reference=forward), x, beside=masks
        ),
        backward=reread(Direction(reads=[dy, y], writes=[dx], reference=backward), dy, y),
    )


def _backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (dy - (y * dy).sum(-1, keepdim=True)) * y


def _attended(mask: Tensor, generator: torch.Generator) -> torch.Tensor:
    """Three columns in four at random, and the first, so that no row is empty."""
    drawn = torch.rand(mask.shape, generator=generator, device=generator.device) < 0.75
    drawn[:, :1] = True
    return drawn
