"""y = x + 1, a small operation whose implementations misbehave, each in its own way."""

from __future__ import annotations

from membound.kernels.dtypes import DType, float32
from membound.kernels.operation import Direction, Directions, operation, tensors
from membound.kernels.shapes import layer


@operation(shapes=[layer(rows=512, columns=96)], dtypes=[float32], tier=3)
def shift(rows: int, columns: int, dtype: DType) -> Directions:
    x, y = tensors("x y", (rows, columns), dtype)
    return Directions(Direction([x], [y], lambda x: x + 1))
