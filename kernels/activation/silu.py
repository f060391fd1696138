"""SiLU (swish): y = x · sigmoid(x). silu(-inf) is NaN, silu(+inf) is +inf, as in PyTorch."""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType
from ..operation import Direction, Directions, operation, tensors
from ..shapes import ROWS


def forward(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x)


def backward(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    s = torch.sigmoid(x)
    return dy * s * (1 + x * (1 - s))


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def silu(rows: int, columns: int, dtype: DType) -> Directions:
    x, y, dy, dx = tensors("x y dy dx", (rows, columns), dtype)
    return Directions(
        forward=Direction(reads=[x], writes=[y], reference=forward),
        backward=Direction(reads=[dy, x], writes=[dx], reference=backward),
    )
