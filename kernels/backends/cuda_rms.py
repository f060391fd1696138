"""RMSNorm in CUDA C++, with or without a residual add: how `include/row_rms.cuh` is launched.

Rows are kept in registers while they fit, forward then in shared memory, then read again; backward
goes from registers to tiles of columns, which read dy and x twice. `choice["path"]` says which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from ..dtypes import float32
from ..operation import Tensor
from ..spec import CannotPrepare, Launch, Prepared, Spec, Tensors
from ..target import KIB, Target
from .cuda import TYPES, Geometry, build, operands, reuse, vector_bytes

_WARP = 32
_BLOCK = 256  # threads where rows share a block, and the most one row gets if it can do with them
_MOST_LANES = 512  # of one row; 1024 would leave one block per multiprocessor with 1536 threads
_RESERVED = 2 * KIB  # shared memory a block takes beside what it asks for
_SUM_COLUMNS, _SUM_ROWS = 32, 32  # threads of column_sums: a line of 128 bytes, partials at once


@dataclass(frozen=True)
class RowPlan:
    """`RowPlan` of include/row.cuh, with the shared memory of a block and the resident blocks."""

    bytes: int
    threads: int
    lanes: int
    vectors: int
    ragged: bool
    blocks: int
    shared_bytes: int = 0

    @property
    def rows(self) -> int:
        """Rows of one block."""
        return self.threads // self.lanes

    def __str__(self) -> str:
        shape = f"{self.bytes}, {self.threads}, {self.lanes}, {self.vectors}"
        return f"RowPlan<{shape}, {str(self.ragged).lower()}, {self.blocks}>"


def grid(rows: int, plan: RowPlan, target: Target) -> int:
    """Blocks that are all resident and whose numbers of rows differ by one at most."""
    groups = -(-rows // plan.rows)
    turns = -(-groups // (target.multiprocessors * plan.blocks))
    return -(-groups // max(turns, 1))


def cut(columns: int, itemsize: int, target: Target) -> tuple[int, bool]:
    """(bytes of an access, whether some rows begin between two of them)."""
    for width in (vector_bytes(target), 16):
        if columns * itemsize % width == 0:
            return width, False
    return 16, True


def longest_row(columns: int, width: int, ragged: bool) -> int:
    """Vectors of `width` elements that a row touches at most, wherever it begins."""
    return -(-(columns + (width - 1 if ragged else 0)) // width)


def lanes_and_vectors(vectors: int, width_bytes: int) -> tuple[int, int] | None:
    """(threads of a row, vectors each keeps), None where registers do not hold the row.

    32 to 64 bytes a thread; of those the fewest idle places, then the fewest registers.
    """
    fits = []
    for each in (1, 2) if width_bytes == 32 else (2, 3, 4):
        lanes = -(-vectors // each)
        lanes = 1 << (lanes - 1).bit_length() if lanes <= _WARP else -(-lanes // _WARP) * _WARP
        if lanes <= _MOST_LANES:
            fits.append((lanes > _BLOCK, lanes * each, each, lanes))
    if not fits:
        return None
    _, _, each, lanes = min(fits)
    return lanes, each


def resident(threads: int, registers: int, shared_bytes: int, target: Target) -> int:
    """Blocks on a multiprocessor at once, 1 to 16, that leave a thread at least `registers`.

    Warps are dealt to four schedulers, each with a quarter of the registers, in steps of 8.
    """
    warps = target.registers_per_multiprocessor // 4 // _WARP // registers * 4
    return max(
        1,
        min(
            16,
            warps * _WARP // threads,
            target.threads_per_multiprocessor // threads,
            target.shared_per_multiprocessor // (shared_bytes + _RESERVED),
        ),
    )


def forward_plan(
    columns: int, itemsize: int, target: Target, *, residual: bool
) -> tuple[str, RowPlan]:
    """Path ("registers", "shared" or "twice") and plan of forward."""
    width, ragged = cut(columns, itemsize, target)
    vectors = longest_row(columns, width // itemsize, ragged)
    fit = lanes_and_vectors(vectors, width)
    if fit:
        lanes, each = fit
        threads = max(lanes, _BLOCK) if lanes <= _WARP else lanes
        registers = 48 if (width, each) == (16, 2) else 64
        registers += 24 * residual + 16 * ragged
        blocks = resident(threads, registers, 0, target)
        return "registers", RowPlan(width, threads, lanes, each, ragged, blocks)
    threads, each = _MOST_LANES, 64 // width
    shared = vectors * width
    if shared > target.shared_per_block - _RESERVED:
        return "twice", RowPlan(width, threads, threads, each, ragged, 1)
    blocks = min(resident(threads, 128 if ragged else 64, shared, target), 2)
    return "shared", RowPlan(width, threads, threads, each, ragged, blocks, shared)


def backward_plan(
    columns: int, itemsize: int, target: Target, *, residual: bool
) -> tuple[str, RowPlan]:
    """Path ("registers" or "tiles") and plan of backward."""
    width, ragged = cut(columns, itemsize, target)
    elements = width // itemsize
    fit = lanes_and_vectors(longest_row(columns, elements, ragged), width)
    if fit:
        lanes, each = fit
        threads = max(lanes, _BLOCK) if lanes <= _WARP else lanes
        shared = threads * each * elements * 4 if ragged or lanes < threads else 0
        if shared <= target.shared_per_block - _RESERVED:
            registers = 80 if each * width <= 32 else 128
            registers += 16 * (ragged and registers < 128)
            blocks = resident(threads, registers, shared, target)
            return "registers", RowPlan(width, threads, lanes, each, ragged, blocks, shared)
    return "tiles", tile_plan(elements, width, ragged, target)


def tile_plan(elements: int, width: int, ragged: bool, target: Target) -> RowPlan:
    each = 32 // width
    shared = _BLOCK * each * elements * 4 if ragged else 0
    blocks = resident(_BLOCK, 96, shared, target)
    return RowPlan(width, _BLOCK, _BLOCK, each, ragged, blocks, shared)


def prepare_rms(direction: str, spec: Spec, source: Path) -> Prepared:
    """`spec.operation` is rms_norm or add_rms_norm, whose `.cu` is `source`.

    Raises CannotPrepare where it does not compile or a row has 2^31 columns.
    """
    if spec.dims["columns"] >= 2**31:
        raise CannotPrepare("a row has fewer than 2^31 columns")
    return _forward(spec, source) if direction == "forward" else _backward(spec, source)


def _forward(spec: Spec, source: Path) -> Prepared:
    from ..normalization.rms_norm import EPS

    rows, columns = spec.dims["rows"], spec.dims["columns"]
    residual = "residual" in spec.io.operands
    path, plan = forward_plan(columns, spec.dtype.bits // 8, spec.target, residual=residual)
    arguments = f"{TYPES[spec.dtype.name]}, {plan}, {reuse(spec)}"
    if path == "registers":
        name = f"{spec.operation.name}_forward<{arguments}>"
    else:
        staged = str(path == "shared").lower()
        name = f"{spec.operation.name}_forward_steps<{arguments}, {staged}>"
    (kernel,) = build(spec, source, name)
    geometry = Geometry(grid(rows, plan, spec.target), plan.threads, plan.shared_bytes)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data = operands(tensors, spec.io.operands.values())
        if not rows or not columns:
            return _nothing
        sizes = _sizes(spec, plan, tensors)
        return kernel.bind(stream, geometry, (*data, *sizes, numpy.float32(EPS)))

    return Prepared(bind, choice={"path": path, "plan": str(plan)})


def _backward(spec: Spec, source: Path) -> Prepared:
    rows, columns = spec.dims["rows"], spec.dims["columns"]
    residual = "dh" in spec.io.operands
    path, plan = backward_plan(columns, spec.dtype.bits // 8, spec.target, residual=residual)
    *reads, dx, dweight = spec.io.operands.values()
    arguments = f"{TYPES[spec.dtype.name]}, {plan}"
    stored = f"{arguments}, {reuse(spec)}"
    column_sums = f"column_sums<{TYPES[spec.dtype.name]}, {_SUM_COLUMNS}, {_SUM_ROWS}>"
    if path == "registers":
        names = [f"{spec.operation.name}_backward<{stored}>"]
        shares = blocks = grid(rows, plan, spec.target)
        scratch = []
    else:
        names = [
            f"{spec.operation.name}_projections<{arguments}>",
            f"{spec.operation.name}_backward_tiles<{stored}>",
        ]
        tiles, shares = tiling(rows, columns, spec.dtype.bits // 8, plan, spec.target)
        blocks = tiles * shares
        scratch = [Tensor("projected", (rows,), float32)]
    *kernels, sums = build(spec, source, *names, column_sums)
    partials = Tensor("partials", (max(shares, 1), columns), float32)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        *inputs, out, total, partial = operands(tensors, [*reads, dx, dweight, partials])
        projected = operands(tensors, scratch)
        launches: list[Callable[[], None]] = []
        if not columns:
            return _nothing
        sizes = _sizes(spec, plan, tensors)
        if rows and projected:
            geometry = Geometry(grid(rows, plan, spec.target), plan.threads)
            launches.append(kernels[0].bind(stream, geometry, (*inputs, *projected, *sizes)))
        if rows:
            geometry = Geometry(blocks, plan.threads, plan.shared_bytes)
            given = (*inputs, *projected, out, partial)
            launches.append(kernels[-1].bind(stream, geometry, (*given, *sizes)))
        geometry = Geometry(-(-columns // _SUM_COLUMNS), _SUM_COLUMNS * _SUM_ROWS)
        counts = (numpy.int32(shares), numpy.int32(columns))
        launches.append(sums.bind(stream, geometry, [total, partial, *counts]))

        def launch() -> None:
            for run in launches:
                run()

        return launch

    return Prepared(bind, [*scratch, partials], choice={"path": path, "plan": str(plan)})


def tiling(
    rows: int, columns: int, itemsize: int, plan: RowPlan, target: Target
) -> tuple[int, int]:
    """(tiles of columns, shares of rows) of backward where registers do not hold a row."""
    tile = (plan.threads * plan.vectors - plan.ragged) * (plan.bytes // itemsize)
    tiles = -(-columns // tile)
    shares = max(1, target.multiprocessors * plan.blocks // tiles)
    return tiles, min(shares, rows)


def _sizes(spec: Spec, plan: RowPlan, tensors: Tensors) -> tuple[numpy.generic, ...]:
    """rows, columns, elements that matrices and weight begin past a vector, 1 / columns.

    Raises ValueError naming a tensor that begins where this plan cannot cut it.
    """
    columns = spec.dims["columns"]
    past = {
        tensor.name: tensors[tensor.name].data_ptr() % plan.bytes * 8 // spec.dtype.bits
        for tensor in spec.io.operands.values()
        if len(tensor.shape) == 2 or tensor.name == "weight"
    }
    weight = past.pop("weight")
    for name, shift in (*past.items(), ("weight", weight)):
        if not plan.ragged and shift:
            raise ValueError(f"{name} must begin on {plan.bytes} bytes; copy the slice")
        if name != "weight" and shift != next(iter(past.values())):
            raise ValueError(f"{name} and {next(iter(past))} must begin alike, modulo {plan.bytes}")
    return (
        numpy.int64(spec.dims["rows"]),
        numpy.int32(columns),
        numpy.int32(next(iter(past.values()))),
        numpy.int32(weight),
        numpy.float32(1 / columns),
    )


def _nothing() -> None:
    return None
