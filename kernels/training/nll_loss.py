"""Negative log-likelihood of rows of logarithms, which is what a loss does after log_softmax.

    loss = -x[target]                                    dx = -dloss [column = target]
    loss = -(1 - e) x[target] - e mean(x)                dx = … - dloss e / columns

The second line is with label smoothing e. Targets that are ignored, or no class, are those of
cross_entropy.py, whose unfused form this is a step of.
"""

from __future__ import annotations

import torch

from ..dtypes import DType, float32
from ..operation import Direction, Directions, operation
from ..shapes import STEP_ROWS
from .cross_entropy import IGNORED, SMOOTHING, is_class, operands

Real = torch.Tensor


def _directions(rows: int, columns: int, dtype: DType, smoothing: float) -> Directions:
    named = operands(rows, columns, dtype, moved=None if smoothing else rows)

    def forward(x: Real, target: Real) -> Real:
        own = torch.gather(x, 1, target.clamp(0, columns - 1)[:, None])[:, 0]
        loss = -(1 - smoothing) * own
        if smoothing:
            loss = loss - smoothing * x.mean(-1)
        loss = torch.where(is_class(target, columns), loss, torch.nan)
        return torch.where(target == IGNORED, 0.0, loss)

    def backward(dloss: Real, target: Real) -> Real:
        wanted = torch.arange(columns, device=target.device) == target[:, None]
        dx = -dloss[:, None] * ((1 - smoothing) * wanted + smoothing / columns)
        dx = torch.where(is_class(target, columns)[:, None], dx, torch.nan)
        return torch.where(target[:, None] == IGNORED, 0.0, dx)

    return Directions(
        forward=Direction([named["x"], named["target"]], [named["loss"]], forward),
        backward=Direction([named["dloss"], named["target"]], [named["dx"]], backward),
    )


@operation(shapes=STEP_ROWS, dtypes=[float32], tier=3)
def nll_loss(rows: int, columns: int, dtype: DType) -> Directions:
    """Negative log-likelihood of rows of logarithms and a class each."""
    return _directions(rows, columns, dtype, 0.0)


@operation(shapes=STEP_ROWS, dtypes=[float32], tier=3)
def nll_loss_smoothed(rows: int, columns: int, dtype: DType) -> Directions:
    """Negative log-likelihood with a label smoothing of 0.1."""
    return _directions(rows, columns, dtype, SMOOTHING)
