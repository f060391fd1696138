"""Streams whose variants truly move more than is stated: what a comparison of runs must find.

The stated traffic is that of the plain variant; `more5` and `more10` move 5 % and 10 % more.
"""

from __future__ import annotations

from membound.kernels.copy.stream import elementwise, row_sums
from membound.kernels.dtypes import FLOATS, DType
from membound.kernels.operation import Directions, operation
from membound.kernels.shapes import scaled

SHAPES = (scaled("rows", rows=4096, columns=4096),)


@operation(shapes=SHAPES, dtypes=FLOATS, tier=3)
def slowed_copy(rows: int, columns: int, dtype: DType) -> Directions:
    """y = x."""
    return elementwise("x", rows, columns, dtype, lambda x: x)


@operation(shapes=SHAPES, dtypes=FLOATS, tier=3)
def slowed_read(rows: int, columns: int, dtype: DType) -> Directions:
    """sums = the float32 sum of each row."""
    return row_sums(rows, columns, dtype)


@operation(shapes=SHAPES, dtypes=FLOATS, tier=3)
def slowed_add(rows: int, columns: int, dtype: DType) -> Directions:
    """y = a + b."""
    return elementwise("a b", rows, columns, dtype, lambda a, b: a + b)
