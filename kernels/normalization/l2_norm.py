"""Rows divided by their Euclidean length: y = x / max(‖x‖, eps).

eps = 1e-12 bounds the length, as in `torch.nn.functional.normalize`; a shorter row is multiplied by
1e12, and so is its gradient. Forward saves the length, float32.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType, float32
from ..long_rows import reread
from ..operation import Direction, Directions, Tensor, operation, tensors
from ..shapes import NORMALIZED_ROWS

EPS = 1e-12


def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    norm = torch.linalg.vector_norm(x, dim=-1)
    return x / norm.clamp_min(EPS)[:, None], norm


def backward(dy: torch.Tensor, x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    length = norm.clamp_min(EPS)[:, None]
    along = x / length * (dy * x / length).sum(-1, keepdim=True)
    return (dy - along.masked_fill(norm[:, None] < EPS, 0)) / length


@operation(shapes=NORMALIZED_ROWS, dtypes=FLOATS, tier=2)
def l2_norm(rows: int, columns: int, dtype: DType) -> Directions:
    x, dy = tensors("x dy", (rows, columns), dtype)
    y, dx = tensors("y dx", (rows, columns), dtype, reduces=columns)
    norm = Tensor("norm", (rows,), float32, reduces=columns)
    there = Direction(reads=[x], writes=[y], saves=[norm], reference=forward)
    back = Direction(reads=[dy, x, norm], writes=[dx], reference=backward)
    return Directions(forward=reread(there, x), backward=reread(back, dy, x))
