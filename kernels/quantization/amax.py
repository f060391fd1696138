"""The largest magnitude of a tensor: the read that a dynamic scale for all of it costs."""

from __future__ import annotations

import torch

from ..dtypes import DType, float32
from ..operation import Direction, Directions, Tensor, operation
from ..shapes import QUANTIZED_ROWS
from .quantize import HALVES


def _largest(x: torch.Tensor) -> torch.Tensor:
    return x.abs().amax().reshape(1) if x.numel() else x.new_zeros(1)


@operation(shapes=QUANTIZED_ROWS, dtypes=HALVES)
def amax(rows: int, columns: int, dtype: DType) -> Directions:
    """amax = max |x| of the whole tensor, float32; NaN where any is, 0 where there are none."""
    x, y = Tensor("x", (rows, columns), dtype), Tensor("amax", (1,), float32)
    return Directions(Direction(reads=[x], writes=[y], reference=_largest, separable=False))
