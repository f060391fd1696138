"""Multiplication of two arrays: the step that gated activations fuse away."""

from __future__ import annotations

from ..dtypes import FLOATS, DType
from ..operation import Directions, operation
from ..shapes import ROWS
from .stream import elementwise


@operation(shapes=ROWS, dtypes=FLOATS)
def mul(rows: int, columns: int, dtype: DType) -> Directions:
    """y = a b."""
    return elementwise("a b", rows, columns, dtype, lambda a, b: a * b)
