"""Rows too long to wait on the chip for their own statistics: the bytes of a second read."""

from __future__ import annotations

from dataclasses import replace

from .operation import Direction, Tensor
from .target import ARCHITECTURES, KIB, shared_per_block

_RESERVED = 2 * KIB
"""Of a block's shared memory, for what a reduction needs beside the row."""

LONGEST = max(shared_per_block(int(arch[3:])) for arch in ARCHITECTURES) - _RESERVED
"""Bytes of a row that a block keeps on the device with the most shared memory."""


def reread(direction: Direction, *again: Tensor, longest: int = LONGEST) -> Direction:
    """`direction` with its schedule where rows of `again`, together, exceed `longest` bytes.

    Each of `again` is then read twice: once for the statistics of its row, once to be rewritten.
    """
    if sum(tensor.dtype.nbytes(tensor.shape[-1]) for tensor in again) <= longest:
        return direction
    bytes_ = direction.traffic + sum(tensor.traffic for tensor in again)
    return replace(direction, schedule_bytes=bytes_)
