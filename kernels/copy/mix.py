"""The ceilings: plain streams at the read shares that layers have, `mix_<reads>r<writes>w`.

An operation is held to the stream with its own read share, because a memory does not read and
write equally fast. y is the sum of the arrays read, added left to right in float32 and rounded
once; without a write each row is summed, and without a read y is constant.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType
from ..operation import Directions, operation
from ..shapes import ROWS
from .stream import FILL_VALUE, elementwise, row_sums


def _sum(*arrays: torch.Tensor) -> torch.Tensor:
    return torch.stack(arrays).sum(0)


def _constant(*shape: int) -> torch.Tensor:
    return torch.full(shape, FILL_VALUE, dtype=torch.float64)


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def mix_1r0w(rows: int, columns: int, dtype: DType) -> Directions:
    """Read one array."""
    return row_sums(rows, columns, dtype)


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def mix_3r1w(rows: int, columns: int, dtype: DType) -> Directions:
    """Read three arrays, write one."""
    return elementwise("x0 x1 x2", rows, columns, dtype, _sum)


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def mix_2r1w(rows: int, columns: int, dtype: DType) -> Directions:
    """Read two arrays, write one."""
    return elementwise("x0 x1", rows, columns, dtype, _sum)


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def mix_1r1w(rows: int, columns: int, dtype: DType) -> Directions:
    """Read one array, write one."""
    return elementwise("x0", rows, columns, dtype, _sum)


@operation(shapes=ROWS, dtypes=FLOATS, tier=1)
def mix_0r1w(rows: int, columns: int, dtype: DType) -> Directions:
    """Write one array."""
    return elementwise("", rows, columns, dtype, _constant)
