"""RMSNorm over rows: y = x / sqrt(mean(x²) + eps) · weight.

eps = 1e-6 is added inside the square root. The product with the weight is formed in float32 and
rounded once (PyTorch's order; Llama rounds before the weight). Forward saves rstd, float32.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType, float32
from ..long_rows import reread
from ..operation import Direction, Directions, Tensor, operation, tensors
from ..shapes import NORMALIZED_ROWS
from ..target import KIB

EPS = 1e-6

LONGEST_BACKWARD = 64 * KIB
"""Bytes of dy and x of the longest row that is read once: backward sums by columns too, and 512
threads have registers for so much."""


def forward(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rstd = torch.rsqrt((x * x).mean(-1) + EPS)
    return x * rstd[:, None] * weight, rstd


def backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    xhat, g = x * rstd[:, None], dy * weight
    dx = (g - xhat * (g * xhat).mean(-1, keepdim=True)) * rstd[:, None]
    return dx, (dy * xhat).sum(0)


@operation(shapes=NORMALIZED_ROWS, dtypes=FLOATS, tier=1)
def rms_norm(rows: int, columns: int, dtype: DType) -> Directions:
    x, dy = tensors("x dy", (rows, columns), dtype)
    y, dx = tensors("y dx", (rows, columns), dtype, reduces=columns)
    (weight,) = tensors("weight", (columns,), dtype)
    (dweight,) = tensors("dweight", (columns,), dtype, reduces=rows)
    rstd = Tensor("rstd", (rows,), float32, reduces=columns)
    there = Direction(reads=[x, weight], writes=[y], saves=[rstd], reference=forward)
    back = Direction(reads=[dy, x, weight, rstd], writes=[dx, dweight], reference=backward)
    return Directions(
        forward=reread(there, x), backward=reread(back, dy, x, longest=LONGEST_BACKWARD)
    )
