"""Dropout with p = 0.1, whose generator is a function of the place: y = x · kept / (1 − p).

Draws are Philox 4x32-10 (`kernels/philox.py`), 16 bits each, keyed by the seed and counted from the
offset in `state`; p is rounded to 6554/65536, and 1/(1 − p) is of that. What is dropped is
multiplied by 0, as in PyTorch: NaN and infinity become NaN. The same state gives the same result,
so backward draws again what forward drew and no mask is kept. Operations named `_byte_mask` and
`_bit_mask` keep one instead, a byte an element (as PyTorch does) or a bit, and their backward draws
nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..dtypes import FLOATS, DType, int64, uint8
from ..operation import Direction, Directions, Tensor, operation, tensors
from ..philox import SCALE, kept
from ..shapes import BYTES_OF_BITS, MASKED_ROWS, ROWS

Real = torch.Tensor
Masks = list[Tensor]


def state() -> Tensor:
    """Seed and offset."""

    def drawn(tensor: Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.randint(2**62, tensor.shape, generator=generator, device=generator.device)

    return Tensor("state", (2,), int64, fill=drawn)


def no_mask(rows: int, columns: int) -> Masks:
    return []


def byte_mask(rows: int, columns: int) -> Masks:
    """uint8 (rows, columns): 1 where an element is kept."""
    return [Tensor("mask", (rows, columns), uint8)]


def bit_mask(rows: int, columns: int) -> Masks:
    """uint8 (rows, columns / 8): bit j of byte b is column 8b + j.

    Raises ValueError where 8 does not divide the columns.
    """
    if columns % 8:
        raise ValueError(f"a bit mask needs whole bytes: columns % 8 == 0; got {columns} columns")
    return [Tensor("mask", (rows, columns // 8), uint8)]


Form = Callable[[int, int], Masks]


def packed(form: Form, keep: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`keep`, bool (rows, columns), as `form` stores it."""
    if form is no_mask:
        return ()
    if form is byte_mask:
        return (keep.to(torch.uint8),)
    rows, columns = keep.shape
    bits = keep.reshape(rows, columns // 8, 8).to(torch.uint8)
    return ((bits << torch.arange(8, device=bits.device)).sum(-1).to(torch.uint8),)


def unpacked(form: Form, given: torch.Tensor, like: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Which elements of `like` are kept, of the state or of the mask that backward is given."""
    if form is no_mask:
        return kept(given, like, first)
    if form is byte_mask:
        return given.view(torch.bool)
    bits = given[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=given.device) & 1
    return bits.reshape(like.shape).view(torch.bool)


def _dropout(rows: int, columns: int, dtype: DType, form: Form) -> Directions:
    def forward(x: Real, state: torch.Tensor, first: int = 0) -> tuple[torch.Tensor, ...]:
        keep = kept(state, x, first)
        return x * (keep * SCALE), *packed(form, keep)

    def backward(dy: Real, given: torch.Tensor, first: int = 0) -> Real:
        return dy * (unpacked(form, given, dy, first) * SCALE)

    x, y, dy, dx = tensors("x y dy dx", (rows, columns), dtype)
    masks = form(rows, columns)
    return Directions(
        forward=Direction(
            reads=[x, state()], writes=[y], saves=masks, reference=forward, positioned=True
        ),
        backward=Direction(
            reads=[dy, *(masks or [state()])], writes=[dx], reference=backward, positioned=True
        ),
    )


@operation(shapes=ROWS, dtypes=FLOATS)
def dropout(rows: int, columns: int, dtype: DType) -> Directions:
    """y = dropout(x), p = 0.1; backward draws the mask again."""
    return _dropout(rows, columns, dtype, no_mask)


@operation(shapes=MASKED_ROWS, dtypes=FLOATS)
def dropout_byte_mask(rows: int, columns: int, dtype: DType) -> Directions:
    """y = dropout(x), p = 0.1, and its mask, a byte an element."""
    return _dropout(rows, columns, dtype, byte_mask)


@operation(shapes=BYTES_OF_BITS, dtypes=FLOATS)
def dropout_bit_mask(rows: int, columns: int, dtype: DType) -> Directions:
    """y = dropout(x), p = 0.1, and its mask, a bit an element."""
    return _dropout(rows, columns, dtype, bit_mask)
