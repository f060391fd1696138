"""Layer normalization over rows: y = (x - mean(x)) / sqrt(var(x) + eps) · weight + bias.

eps = 1e-5, PyTorch's default, is added to the biased variance inside the square root. The result is
formed in float32 and rounded once. Forward saves mean and rstd, float32.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType, float32
from ..long_rows import reread
from ..operation import Direction, Directions, operation, tensors
from ..shapes import NORMALIZED_ROWS

EPS = 1e-5


def forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mean = x.mean(-1)
    apart = x - mean[:, None]
    rstd = torch.rsqrt((apart * apart).mean(-1) + EPS)
    return apart * rstd[:, None] * weight + bias, mean, rstd


def backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    xhat, g = (x - mean[:, None]) * rstd[:, None], dy * weight
    along = xhat * (g * xhat).mean(-1, keepdim=True)
    dx = (g - g.mean(-1, keepdim=True) - along) * rstd[:, None]
    return dx, (dy * xhat).sum(0), dy.sum(0)


def longest_backward(dtype: DType) -> int:
    """Bytes of dy and x of the longest row that is read once.

    Backward sums by columns too: 512 threads have registers for both sums, dy and x of so many.
    """
    return 2 * dtype.nbytes(8192 if dtype.bits == 32 else 12288)


@operation(shapes=NORMALIZED_ROWS, dtypes=FLOATS, tier=1)
def layer_norm(rows: int, columns: int, dtype: DType) -> Directions:
    x, dy = tensors("x dy", (rows, columns), dtype)
    y, dx = tensors("y dx", (rows, columns), dtype, reduces=columns)
    weight, bias = tensors("weight bias", (columns,), dtype)
    dweight, dbias = tensors("dweight dbias", (columns,), dtype, reduces=rows)
    mean, rstd = tensors("mean rstd", (rows,), float32, reduces=columns)
    there = Direction(reads=[x, weight, bias], writes=[y], saves=[mean, rstd], reference=forward)
    back = Direction(
        reads=[dy, x, weight, mean, rstd], writes=[dx, dweight, dbias], reference=backward
    )
    return Directions(
        forward=reread(there, x),
        backward=reread(back, dy, x, longest=longest_backward(dtype)),
    )
