"""Reads that skip or jump: what a memory that moves sectors of 32 bytes gives to single elements.

The traffic counts useful bytes: the elements that are used, those written, and the index. What is
fetched beside them is the loss these operations are here to show.

strided_read_<n>: y = every n-th element of x, the stride counted in elements.
gather_<type>: y = x[index], where index is a random permutation of all elements; every read is
then likely to be of a sector of its own.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType, int32, int64
from ..operation import Direction, Directions, Tensor, operation, tensors
from ..shapes import ROWS


def _strided(rows: int, columns: int, dtype: DType, stride: int) -> Directions:
    x = Tensor("x", (rows, columns * stride), dtype, moved=rows * columns)
    y = tensors("y", (rows, columns), dtype)
    return Directions(Direction([x], y, lambda x: x[:, ::stride]))


def permutation(tensor: Tensor, generator: torch.Generator) -> torch.Tensor:
    """Every element's index once, in random order."""
    order = torch.randperm(tensor.elements, generator=generator, device=generator.device)
    return order.reshape(tensor.shape)


def _gathered(rows: int, columns: int, dtype: DType, index_type: DType) -> Directions:
    if rows * columns > 2 ** (index_type.bits - 1):
        raise ValueError(f"{rows}x{columns} elements are beyond an index of {index_type}")
    x, y = tensors("x y", (rows, columns), dtype)
    index = Tensor("index", (rows, columns), index_type, fill=permutation)

    def take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.take(x, index.long())

    return Directions(Direction([x, index], [y], take, separable=False))


@operation(shapes=ROWS, dtypes=FLOATS, tier=3)
def strided_read_2(rows: int, columns: int, dtype: DType) -> Directions:
    """y = every second element of x: half of every sector is used."""
    return _strided(rows, columns, dtype, 2)


@operation(shapes=ROWS, dtypes=FLOATS, tier=3)
def strided_read_8(rows: int, columns: int, dtype: DType) -> Directions:
    """y = every eighth element of x: one element of float32 from each sector, or two of 16 bits."""
    return _strided(rows, columns, dtype, 8)


@operation(shapes=ROWS, dtypes=FLOATS, tier=3)
def gather_int32(rows: int, columns: int, dtype: DType) -> Directions:
    """y = x[index], a random permutation; an index is 4 bytes."""
    return _gathered(rows, columns, dtype, int32)


@operation(shapes=ROWS, dtypes=FLOATS, tier=3)
def gather_int64(rows: int, columns: int, dtype: DType) -> Directions:
    """y = x[index], a random permutation; an index is 8 bytes."""
    return _gathered(rows, columns, dtype, int64)
