"""The copy family: what the memory can do when nothing else is in the way.

Rows and columns only name the extents; a kernel sees one contiguous run of rows x columns
elements. `read` sums each row in float32 so that every load is needed; its sums are a by-product
that no minimum contains and move nothing in the traffic.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType, float32
from ..operation import Direction, Directions, Reference, Tensor, operation, tensors
from ..shapes import ROWS

FILL_VALUE = 0.7109375  # exact in bfloat16
FACTOR = 1.7109375  # of scale and triad: exact in bfloat16


def elementwise(names: str, rows: int, columns: int, dtype: DType, f: Reference) -> Directions:
    """`names` reads, then y: y = f(reads), element by element."""
    reads = tensors(names, (rows, columns), dtype)
    return Directions(Direction(reads, tensors("y", (rows, columns), dtype), f))


def row_sums(rows: int, columns: int, dtype: DType) -> Directions:
    """Read x; write one float32 sum a row, which the traffic leaves out."""
    sums = Tensor("sums", (rows,), float32, moved=0, reduces=columns)
    return Directions(Direction(tensors("x", (rows, columns), dtype), [sums], lambda x: x.sum(1)))


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def copy(rows: int, columns: int, dtype: DType) -> Directions:
    """y = x."""
    return elementwise("x", rows, columns, dtype, lambda x: x)


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def scale(rows: int, columns: int, dtype: DType) -> Directions:
    """y = 1.7109375 x."""
    return elementwise("x", rows, columns, dtype, lambda x: FACTOR * x)


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def add(rows: int, columns: int, dtype: DType) -> Directions:
    """y = a + b."""
    return elementwise("a b", rows, columns, dtype, lambda a, b: a + b)


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def triad(rows: int, columns: int, dtype: DType) -> Directions:
    """y = a + 1.7109375 b, rounded once."""
    return elementwise("a b", rows, columns, dtype, lambda a, b: a + FACTOR * b)


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def fill(rows: int, columns: int, dtype: DType) -> Directions:
    """y = 0.7109375 everywhere: writes only."""

    def constant(*shape: int) -> torch.Tensor:
        return torch.full(shape, FILL_VALUE, dtype=torch.float64)

    return elementwise("", rows, columns, dtype, constant)


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def read(rows: int, columns: int, dtype: DType) -> Directions:
    """sums = the float32 sum of each row: reads only."""
    return row_sums(rows, columns, dtype)
