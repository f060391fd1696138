"""Conversions between element types. The dtype of a case is what is read; the name says the other.

Rounding is to nearest even; beyond the largest float16 stands infinity, NaN stays NaN.
"""

from __future__ import annotations

from ..dtypes import DType, bfloat16, float16, float32
from ..operation import Direction, Directions, operation, tensors
from ..shapes import ROWS


def _cast(rows: int, columns: int, dtype: DType, to: DType) -> Directions:
    reads, writes = tensors("x", (rows, columns), dtype), tensors("y", (rows, columns), to)
    return Directions(Direction(reads, writes, lambda x: x))


@operation(shapes=ROWS, dtypes=[float16, bfloat16])
def cast_to_float32(rows: int, columns: int, dtype: DType) -> Directions:
    """y = x in float32, of a type of 16 bits."""
    return _cast(rows, columns, dtype, float32)


@operation(shapes=ROWS, dtypes=[float32])
def cast_to_float16(rows: int, columns: int, dtype: DType) -> Directions:
    """y = x in float16, of float32."""
    return _cast(rows, columns, dtype, float16)


@operation(shapes=ROWS, dtypes=[float32])
def cast_to_bfloat16(rows: int, columns: int, dtype: DType) -> Directions:
    """y = x in bfloat16, of float32."""
    return _cast(rows, columns, dtype, bfloat16)
