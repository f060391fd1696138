"""Rows too long to wait on the chip for their own statistics: the bytes of a second read.

How long that is depends on the device. A `Direction` declares the schedule of the most capable one:
a cluster of blocks, each with the most shared memory there is, keeps a row. An implementation that
has to read rows again where they could have been kept says so in `Prepared.schedule_bytes`, and the
record of a measurement has what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .operation import Direction, Tensor
from .target import ARCHITECTURES, KIB, blocks_per_cluster, shared_per_block

_RESERVED = 2 * KIB
"""Of a block's shared memory, for what a reduction needs beside the row."""

_STEP = 16 * KIB
"""What a block keeps of a row is a multiple of this: a vector of every thread."""

_SMS = [int(arch.removeprefix("sm_")) for arch in ARCHITECTURES]

LONGEST_OF_BLOCK = max(map(shared_per_block, _SMS)) - _RESERVED
"""Bytes of a row that a block keeps on the device with the most shared memory."""

LONGEST = LONGEST_OF_BLOCK // _STEP * _STEP * max(map(blocks_per_cluster, _SMS))
"""Bytes of a row that a cluster keeps on that device."""


def reread(
    direction: Direction, *again: Tensor, longest: int = LONGEST, beside: Sequence[Tensor] = ()
) -> Direction:
    """`direction` with its schedule where rows of `again`, together, exceed `longest` bytes.

    Each of `again` is then read twice: once for the statistics of its row, once to be rewritten;
    so is what is read `beside` them, and would not wait with them.
    """
    if sum(tensor.dtype.nbytes(tensor.shape[-1]) for tensor in again) <= longest:
        return direction
    bytes_ = direction.traffic + sum(tensor.traffic for tensor in (*again, *beside))
    return replace(direction, schedule_bytes=bytes_)


def bytes_of_two_reads(direction: Direction, *but: str) -> int:
    """Bytes that move where its matrices, `but` those, are read twice; of a sum, what was saved."""
    sums = [tensor for tensor in direction.outputs if tensor.name == "h"]
    again = sums or [t for t in direction.reads if len(t.shape) > 1 and t.name not in but]
    return direction.traffic + sum(tensor.traffic for tensor in again)
