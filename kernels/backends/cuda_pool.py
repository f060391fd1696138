"""Pooling of NCHW planes in CUDA C++: strips where windows tile the width, tiles in shared memory
elsewhere. What `include/pool.cuh` and `include/pool_tile.cuh` need from the host.

Bytes loaded beyond the traffic, all of them of rows that a neighbouring block reads too: a plane
cut into bands loads kernel - stride rows of input twice per cut (backward: a row of windows); a row
of more vectors than a warp has threads, one element per warp. Both are zero once there are enough
planes to fill the device and a row is at most 32 vectors, or a plane fits in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from ..dtypes import float32
from ..operation import Tensor
from ..spec import CannotPrepare, Choice, Launch, Prepared, Spec, Tensors
from ..target import KIB, Target
from .cuda import TYPES, Geometry, Kernel, blocks_for, build, operands, reuse, vector_bytes

_THREADS = 256
_STRIP_THREADS = 128  # strips take 50 to 100 registers: small blocks leave fewer of them over
_WARP = 32
_RESERVED = 2 * KIB  # shared memory a block takes beside what it asks for
_TILE = 16 * KIB  # of small planes that share a block
_SHORTEST_BAND = 8  # output rows: one row loaded twice is then at most 1 in 16
_LONGEST_UNROLLED = 4  # kernels of strips
_SUM_COLUMNS, _SUM_ROWS = 32, 32  # threads of column_sums: a line of 128 bytes, partials at once


@dataclass(frozen=True)
class Problem:
    """One direction of a pooling. Lengths in elements.

    itemsize: bytes of an element; window_bytes: of what backward reads of a window.
    sums: windows are summed plane by plane, too. inputs: backward reads x, too.
    """

    forward: bool
    planes: int
    height: int
    width: int
    out_height: int
    out_width: int
    kernel: int
    stride: int
    padding: int
    itemsize: int
    window_bytes: int
    sums: bool = False
    inputs: bool = False

    @property
    def walks(self) -> bool:
        """Whether threads of tiles walk down cells of dx."""
        return not self.forward and self.kernel <= _LONGEST_UNROLLED

    @property
    def rows(self) -> int:
        """Rows that strips walk down: output rows, or steps of `stride` input rows."""
        return self.out_height if self.forward else -(-self.height // self.stride)


@dataclass(frozen=True)
class Plan:
    """What a kernel is given: vectors of `bytes`, planes in `bands` of `band_rows`, `lanes` threads
    in a row, and for tiles `together` planes a block. staged, gathered: what is read and what is
    written lies in shared memory."""

    strips: bool
    bytes: int
    bands: int
    band_rows: int
    lanes: int
    blocks: int
    together: int = 1
    staged: bool = True
    gathered: bool = False
    shared_bytes: int = 0

    @property
    def threads(self) -> int:
        return _STRIP_THREADS if self.strips else _THREADS


def strip_bytes(problem: Problem, target: Target) -> int | None:
    """Bytes of a strip, or None where strips cannot do it (include/pool.cuh says what they can)."""
    if problem.padding != problem.kernel - problem.stride:
        return None
    if problem.padding > 1 or problem.kernel > _LONGEST_UNROLLED:
        return None
    if problem.out_width * problem.stride != problem.width:
        return None
    for width in (vector_bytes(target), 16, 8):
        elements = width // problem.itemsize
        if problem.width % elements or elements % problem.stride:
            continue
        if not problem.sums or problem.width // elements <= _WARP:
            return width
    return None


def strip_plan(problem: Problem, width: int, target: Target) -> Plan:
    """Bands only where whole planes would leave half of the threads without work."""
    across = problem.width // (width // problem.itemsize)
    lanes = across * (_WARP // across) if across <= _WARP else _WARP
    warps = -(-problem.planes * across // lanes)
    wanted = target.multiprocessors * target.threads_per_multiprocessor // 2 // _WARP
    bands = max(1, min(-(-wanted // max(warps, 1)), problem.rows // _SHORTEST_BAND))
    band_rows = -(-problem.rows // bands)
    bands = -(-problem.rows // band_rows)
    blocks = blocks_for(warps * bands, _STRIP_THREADS // _WARP)
    return Plan(True, width, bands, band_rows, lanes, blocks)


def tile_plan(problem: Problem, target: Target) -> Plan:
    """Whole planes where they fit a third of a multiprocessor's shared memory, else bands."""
    width = vector_bytes(target)
    rows = problem.out_height if problem.forward else problem.height
    lanes = min(_WARP, 1 << (_across(problem) - 1).bit_length())
    padding = (6 + 2 * problem.inputs if problem.walks else 4) * width
    most = target.shared_per_block - _RESERVED - padding
    fair = min(most, target.shared_per_multiprocessor // 3 - _RESERVED - padding)
    for gathered in (True, False) if problem.walks else (False,):
        plane = _held(problem, rows, gathered)
        if plane <= fair:
            together = max(1, _TILE // plane)
            together = min(together, max(1, problem.planes // (4 * target.multiprocessors)))
            blocks = blocks_for(problem.planes, together)
            shared = together * plane + padding
            return Plan(False, width, 1, rows, lanes, blocks, together, True, gathered, shared)
        fitting = [_band(problem, fair, gathered), _band(problem, most, gathered)]
        shortest = _SHORTEST_BAND if gathered else 1
        band_rows = next((min(n, rows) for n in fitting if n >= shortest), 0)
        if band_rows:
            bands = -(-rows // band_rows)
            blocks = blocks_for(problem.planes * bands, 1)
            shared = _held(problem, band_rows, gathered) + padding
            return Plan(False, width, bands, band_rows, lanes, blocks, 1, True, gathered, shared)
    bands = -(-rows // _SHORTEST_BAND)
    blocks = blocks_for(problem.planes * bands, 1)
    return Plan(False, width, bands, _SHORTEST_BAND, lanes, blocks, staged=False)


def _across(problem: Problem) -> int:
    """Windows of a row, or cells."""
    if problem.forward or not problem.walks:
        return problem.out_width if problem.forward else problem.width
    return (problem.width - 1 + problem.padding) // problem.stride + 1


def _row_bytes(problem: Problem, gathered: bool) -> tuple[int, int]:
    """Bytes of shared memory of a row that is read, and of one that is written."""
    row = problem.width * problem.itemsize
    if problem.forward:
        return row, 0
    return problem.out_width * problem.window_bytes, gathered * (1 + problem.inputs) * row


def _held(problem: Problem, rows: int, gathered: bool) -> int:
    """Bytes of shared memory of so many written rows, at most."""
    read, written = _row_bytes(problem, gathered)
    if problem.forward:
        held = min((rows - 1) * problem.stride + problem.kernel, problem.height)
    else:
        held = min((rows + problem.kernel - 2) // problem.stride + 1, problem.out_height)
    return held * read + rows * written


def _band(problem: Problem, most: int, gathered: bool) -> int:
    """The longest band that takes at most so many bytes; below 1 where there is none."""
    read, written = _row_bytes(problem, gathered)
    if problem.forward:
        return (most // read - problem.kernel) // problem.stride + 1
    fixed = (problem.kernel - 2 + problem.stride) * read
    return (most * problem.stride - fixed) // (read + written * problem.stride)


def plan_of(problem: Problem, target: Target) -> Plan:
    width = strip_bytes(problem, target)
    return tile_plan(problem, target) if width is None else strip_plan(problem, width, target)


def divider(divisor: int) -> numpy.uint64:
    """What `Divider` of include/pool_axis.cuh multiplies by: 2^63 / divisor, rounded up."""
    return numpy.uint64(-(-(2**63) // divisor))


def prepare_pool(
    direction: str,
    spec: Spec,
    source: Path,
    rule: str,
    moved: Tensor,
    declared: Sequence[Tensor],
    *,
    sums: Tensor | None = None,
) -> Prepared:
    """Windows of `moved` (x), or of its gradient (dx), by the rule of include/pool_rules.cuh.

    declared: the operands of the rule, in its order. sums: a further output, one per channel, that
    adds up what the rule writes to `partial`, its last pointer before the number of channels.
    Raises CannotPrepare where it does not compile or no grid is large enough.
    """
    windows = next(t for t in spec.io.operands.values() if t.name in {"y", "dy"})
    inputs = any(t.shape == moved.shape for t in declared)
    problem = _problem(direction, spec, moved, windows, sums is not None, inputs)
    plan = plan_of(problem, spec.target)
    channels = moved.shape[1]
    if problem.planes >= 2**31 and any(len(t.shape) < 4 for t in spec.io.operands.values()):
        raise CannotPrepare("with a bias there are fewer than 2^31 planes")
    shares = spec.dims["images"] * plan.bands
    partial = [Tensor("partial", (max(shares, 1), channels), float32)] if sums else []
    passed = [*declared, *partial]
    extra = [numpy.int32(channels)] if any(len(t.shape) < 4 for t in passed) else []
    name = _kernel_name(direction, spec, problem, plan, rule, passed, extra)
    column_sums = f"column_sums<{TYPES[spec.dtype.name]}, {_SUM_COLUMNS}, {_SUM_ROWS}>"
    kernel, *second = build(spec, source, name, *([column_sums] if sums else []))
    numbers = _numbers(problem, plan)

    def bind(tensors: Tensors, stream: Any) -> Launch:
        first, *data = operands(tensors, [moved, *passed])
        if plan.strips:
            _require_alignment(spec, problem, plan, tensors)
        runs: list[Callable[[], None]] = []
        if problem.planes:
            geometry = Geometry(plan.blocks, plan.threads, plan.shared_bytes)
            runs.append(kernel.bind(stream, geometry, (first, *numbers, *data, *extra)))
        if sums and channels:
            (total,) = operands(tensors, [sums])
            runs.append(_add_up(second[0], stream, total, data[-1], shares, channels))

        def launch() -> None:
            for run in runs:
                run()

        return runs[0] if len(runs) == 1 else launch

    schedule = "strips" if plan.strips else "tiles"
    choice: Choice = {"schedule": schedule, "bytes": plan.bytes, "bands": plan.bands}
    return Prepared(bind, partial, choice=choice)


def _add_up(
    kernel: Kernel, stream: Any, total: Any, partial: Any, shares: int, channels: int
) -> Callable[[], None]:
    geometry = Geometry(-(-channels // _SUM_COLUMNS), _SUM_COLUMNS * _SUM_ROWS)
    arguments = (total, partial, numpy.int32(shares), numpy.int32(channels))
    return kernel.bind(stream, geometry, arguments)


def _problem(
    direction: str, spec: Spec, moved: Tensor, windows: Tensor, sums: bool, inputs: bool
) -> Problem:
    images, channels, height, width = moved.shape
    *_, out_height, out_width = windows.shape
    read = [t for t in spec.io.reads if t.shape == windows.shape]
    return Problem(
        forward=direction == "forward",
        planes=images * channels,
        height=height,
        width=width,
        out_height=out_height,
        out_width=out_width,
        kernel=spec.dims["kernel"],
        stride=spec.dims["stride"],
        padding=spec.dims.get("padding", 0),
        itemsize=spec.dtype.bits // 8,
        window_bytes=sum(t.dtype.bits // 8 for t in read),
        sums=sums,
        inputs=inputs,
    )


def _kernel_name(
    direction: str,
    spec: Spec,
    problem: Problem,
    plan: Plan,
    rule: str,
    passed: Sequence[Tensor],
    extra: Sequence[numpy.generic],
) -> str:
    schedule = "strips" if plan.strips else "tiles"
    flags = [plan.staged] if problem.forward else [plan.staged, plan.gathered]
    staged = [] if plan.strips else [str(flag).lower() for flag in flags]
    types = [*pointers(spec, passed), *("int" for _ in extra)]
    window = [plan.bytes, problem.kernel, problem.stride]
    shape = [*window, reuse(spec), plan.threads, *staged, *types]
    arguments = ", ".join(map(str, [f"{rule}<{TYPES[spec.dtype.name]}>", *shape]))
    return f"pool_{direction}_{schedule}<{arguments}>"


def pointers(spec: Spec, passed: Sequence[Tensor]) -> list[str]:
    """C++ spelling of pointers to these tensors: const for what is read."""
    read = {tensor.name for tensor in spec.io.reads}
    return [f"{'const ' * (t.name in read)}{TYPES[t.dtype.name]}*" for t in passed]


def _numbers(problem: Problem, plan: Plan) -> list[numpy.generic]:
    numbers = [problem.height, problem.width, problem.out_height, problem.out_width]
    numbers += [plan.bands, plan.band_rows, plan.lanes]
    if not plan.strips:
        numbers += [problem.padding, plan.together]
    return [numpy.int64(problem.planes), *map(numpy.int32, numbers)]


def _require_alignment(spec: Spec, problem: Problem, plan: Plan, tensors: Tensors) -> None:
    """Raises ValueError naming a tensor that does not begin where its vectors could."""
    for tensor in spec.io.operands.values():
        if len(tensor.shape) < 4:  # one element per channel
            continue
        whole = tensor.shape[-1] == problem.width
        item = tensor.dtype.bits // 8
        wanted = plan.bytes if whole else plan.bytes // problem.itemsize // problem.stride * item
        if tensors[tensor.name].data_ptr() % wanted:
            raise ValueError(f"{tensor.name} must begin on {wanted} bytes; copy the slice")
