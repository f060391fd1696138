"""How rows are spread over threads: the host's half of `include/row.cuh` and `include/column.cuh`.

Plans are pure functions of a shape and a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from ..spec import Spec, Tensors
from ..target import KIB, Target
from .cuda import Geometry, vector_bytes

WARP = 32
BLOCK = 256  # threads where rows share a block, and the most one row gets if it can do with them
MOST_LANES = 512  # of one row; 1024 would leave one block per multiprocessor with 1536 threads
CLUSTERS = (2, 4, 8)  # blocks; what every device with clusters can launch
RESERVED = 2 * KIB  # shared memory a block takes beside what it asks for


@dataclass(frozen=True)
class RowPlan:
    """`RowPlan` of include/row.cuh, with the shared memory of a block and the resident blocks.

    cluster: blocks that share a row.
    """

    bytes: int
    threads: int
    lanes: int
    vectors: int
    ragged: bool
    blocks: int
    shared_bytes: int = 0
    cluster: int = 1

    @property
    def rows(self) -> int:
        """Rows of one block."""
        return self.threads // self.lanes

    def __str__(self) -> str:
        shape = f"{self.bytes}, {self.threads}, {self.lanes}, {self.vectors}"
        cluster = f", {self.cluster}" if self.cluster > 1 else ""
        return f"RowPlan<{shape}, {str(self.ragged).lower()}, {self.blocks}{cluster}>"

    def geometry(self, rows: int, target: Target) -> Geometry:
        """The launch over so many rows."""
        return Geometry(grid(rows, self, target), self.threads, self.shared_bytes, self.cluster)


def grid(rows: int, plan: RowPlan, target: Target) -> int:
    """Blocks, in whole clusters, that are all resident and whose rows differ by one at most."""
    groups = -(-rows // plan.rows)
    at_once = max(1, target.multiprocessors * plan.blocks // plan.cluster)
    turns = -(-groups // at_once)
    return -(-groups // max(turns, 1)) * plan.cluster


def cut(columns: int, itemsize: int, target: Target) -> tuple[int, bool]:
    """(bytes of an access, whether some rows begin between two of them)."""
    for width in (vector_bytes(target), 16):
        if columns * itemsize % width == 0:
            return width, False
    return 16, True


def longest_row(columns: int, width: int, ragged: bool) -> int:
    """Vectors of `width` elements that a row touches at most, wherever it begins."""
    return -(-(columns + (width - 1 if ragged else 0)) // width)


def lanes_and_vectors(
    vectors: int, width_bytes: int, preferred_bytes: int = 64
) -> tuple[int, int] | None:
    """(threads of a row, vectors each keeps), None where registers do not hold the row.

    32 to 64 bytes a thread, up to `preferred_bytes` if that can be; the fewest idle places,
    then the fewest registers.
    """
    fits = []
    for each in (1, 2) if width_bytes == 32 else (2, 3, 4):
        lanes = -(-vectors // each)
        lanes = 1 << (lanes - 1).bit_length() if lanes <= WARP else -(-lanes // WARP) * WARP
        if lanes <= MOST_LANES:
            many = each * width_bytes > preferred_bytes
            fits.append((many, lanes > BLOCK, lanes * each, each, lanes))
    if not fits:
        return None
    *_, each, lanes = min(fits)
    return lanes, each


def resident(threads: int, registers: int, shared_bytes: int, target: Target) -> int:
    """Blocks on a multiprocessor at once, 1 to 16, that leave a thread at least `registers`.

    Warps are dealt to four schedulers, each with a quarter of the registers, in steps of 8.
    """
    warps = target.registers_per_multiprocessor // 4 // WARP // registers * 4
    return max(
        1,
        min(
            16,
            warps * WARP // threads,
            target.threads_per_multiprocessor // threads,
            target.shared_per_multiprocessor // (shared_bytes + RESERVED),
        ),
    )


def cluster_plan(columns: int, itemsize: int, target: Target, streams: int = 1) -> RowPlan | None:
    """Plan of rows that a cluster keeps in shared memory, `streams` matrices; None if none can.

    The smallest cluster that leaves a multiprocessor two blocks, so that one loads while the other
    waits for its sums; else the smallest that can.
    """
    width, ragged = cut(columns, itemsize, target)
    vectors = longest_row(columns, width // itemsize, ragged)
    each = max(1, 64 // width // streams)
    registers = 128 if ragged else 64
    plans = []
    for cluster in (size for size in CLUSTERS if size <= target.blocks_per_cluster):
        shared = -(-vectors // (MOST_LANES * cluster)) * MOST_LANES * width * streams
        if shared <= target.shared_per_block - RESERVED:
            blocks = min(resident(MOST_LANES, registers, shared, target), 2)
            plans.append(
                RowPlan(width, MOST_LANES, MOST_LANES, each, ragged, blocks, shared, cluster)
            )
    return min(plans, key=lambda plan: (-plan.blocks, plan.cluster), default=None)


def sizes(spec: Spec, plan: RowPlan, tensors: Tensors) -> tuple[numpy.generic, ...]:
    """rows, columns, elements that matrices and parameters begin past a vector, 1 / columns.

    A parameter is read by every row, one element a column; its place is left out where there is
    none. Raises ValueError naming a tensor that begins where this plan cannot cut it.
    """
    columns = spec.io.operands[_matrices(spec)[0]].shape[-1]
    rows = spec.io.operands[_matrices(spec)[0]].elements // max(columns, 1)
    parameters = [t.name for t in spec.io.reads if t.batched_over == "columns"]
    shifts = [_begin_alike(spec, plan, tensors, _matrices(spec))]
    if parameters:
        shifts.append(_begin_alike(spec, plan, tensors, parameters))
    return (
        numpy.int64(rows),
        numpy.int32(columns),
        *map(numpy.int32, shifts),
        numpy.float32(1 / columns),
    )


def _matrices(spec: Spec) -> list[str]:
    return [t.name for t in spec.io.operands.values() if len(t.shape) > 1]


def _begin_alike(spec: Spec, plan: RowPlan, tensors: Tensors, names: Sequence[str]) -> int:
    """Elements that all of them begin past a vector."""
    width = plan.bytes * 8 // spec.dtype.bits
    first, past = names[0], 0
    for name in names:
        item = tensors[name].element_size()
        shift = tensors[name].data_ptr() // item % width
        if not plan.ragged and shift:
            raise ValueError(f"{name} must begin on {width * item} bytes; copy the slice")
        if name == first:
            past = shift
        elif shift != past:
            raise ValueError(f"{name} and {first} must begin alike, modulo {width} elements")
    return past


def nothing() -> None:
    """The launch of an empty tensor."""
