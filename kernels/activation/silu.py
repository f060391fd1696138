"""SiLU (swish): y = x · sigmoid(x).

At infinity it and its slope are their limits: silu(-inf) = -0 with slope 0, and slope 1 at +inf.
PyTorch's kernels give NaN there (inf · 0).
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType
from ..operation import Direction, Directions, operation, tensors
from ..shapes import ROWS

_LARGEST = torch.finfo(torch.float64).max


def finite(x: torch.Tensor) -> torch.Tensor:
    """x, float64, with infinities replaced by the largest number: a factor that may meet a zero."""
    return x.clamp(-_LARGEST, _LARGEST)


def bounded_below(x: torch.Tensor) -> torch.Tensor:
    """x, float64, with -inf replaced by the lowest number."""
    return x.clamp(min=-_LARGEST)


def forward(x: torch.Tensor) -> torch.Tensor:
    return bounded_below(x) * torch.sigmoid(x)


def backward(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    s = torch.sigmoid(x)
    return dy * (s * (1 + finite(x) * (1 - s)))


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def silu(rows: int, columns: int, dtype: DType) -> Directions:
    x, y, dy, dx = tensors("x y dy dx", (rows, columns), dtype)
    return Directions(
        forward=Direction(reads=[x], writes=[y], reference=forward),
        backward=Direction(reads=[dy, x], writes=[dx], reference=backward),
    )
