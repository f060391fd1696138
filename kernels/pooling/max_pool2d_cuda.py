"""Max-pooling in CUDA C++: strips where windows tile the width, tiles in shared memory elsewhere.

Bytes loaded beyond the traffic, all of them of rows that a neighbouring block reads too: a plane
cut into bands loads kernel - stride rows of input twice per cut (backward: a row of windows); a row
of more vectors than a warp has threads, one element per warp. Both are zero once there are enough
planes to fill the device and a row is at most 32 vectors, or a plane fits in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from ..backends.cuda import TYPES, Geometry, blocks_for, build, operands, reuse, vector_bytes
from ..spec import Launch, Prepared, Spec, Tensors
from ..target import KIB, Target

_SOURCE = Path(__file__).with_name("max_pool2d.cu")
_THREADS = 256
_WARP = 32
_RESERVED = 2 * KIB  # shared memory a block takes beside what it asks for
_TILE = 16 * KIB  # of small planes that share a block
_SHORTEST_BAND = 8  # output rows: one row loaded twice is then at most 1 in 16
_LONGEST_UNROLLED = 4  # kernels of strips


@dataclass(frozen=True)
class Problem:
    """One direction of a pooling. Lengths in elements, itemsize in bytes."""

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

    @property
    def rows(self) -> int:
        """Rows that strips walk down: output rows, or steps of `stride` input rows."""
        return self.out_height if self.forward else -(-self.height // self.stride)


@dataclass(frozen=True)
class Plan:
    """What a kernel is given: vectors of `bytes`, planes in `bands` of `band_rows`, `lanes` threads
    in a row, and for tiles `together` planes a block."""

    strips: bool
    bytes: int
    bands: int
    band_rows: int
    lanes: int
    blocks: int
    together: int = 1
    staged: bool = True
    shared_bytes: int = 0


def strip_bytes(problem: Problem, target: Target) -> int | None:
    """Bytes of a strip, or None where strips cannot do it (include/pool.cuh says what they can)."""
    if problem.padding != problem.kernel - problem.stride or problem.padding > 1:
        return None
    if problem.kernel > _LONGEST_UNROLLED or problem.out_width * problem.stride != problem.width:
        return None
    for width in (vector_bytes(target), 16, 8):
        elements = width // problem.itemsize
        if problem.width % elements == 0 and elements % problem.stride == 0:
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
    return Plan(True, width, bands, band_rows, lanes, blocks_for(warps * bands, _THREADS // _WARP))


def tile_plan(problem: Problem, target: Target) -> Plan:
    """Whole planes where they fit a third of a multiprocessor's shared memory, else bands."""
    width = vector_bytes(target)
    rows = problem.out_height if problem.forward else problem.height
    columns = problem.out_width if problem.forward else problem.width
    staged_rows = problem.height if problem.forward else problem.out_height
    row_bytes = (
        problem.width * problem.itemsize
        if problem.forward
        else problem.out_width * (problem.itemsize + 1)
    )
    padding = 4 * width
    fair = target.shared_per_multiprocessor // 3 - _RESERVED - padding
    most = target.shared_per_block - _RESERVED - padding
    lanes = min(_WARP, 1 << (columns - 1).bit_length())
    together, band_rows, taken = 1, rows, staged_rows
    if staged_rows * row_bytes <= min(fair, most):
        together = max(1, _TILE // (staged_rows * row_bytes))
        together = min(together, max(1, problem.planes // (4 * target.multiprocessors)))
    else:
        band_rows = max(_band(problem, min(fair, most) // row_bytes), 0) or _band(
            problem, most // row_bytes
        )
        if band_rows < 1:
            blocks = blocks_for(problem.planes * -(-rows // _SHORTEST_BAND), 1)
            bands = -(-rows // _SHORTEST_BAND)
            return Plan(False, width, bands, _SHORTEST_BAND, lanes, blocks, staged=False)
        band_rows = min(band_rows, rows)
        taken = _staged(problem, band_rows)
    bands = -(-rows // band_rows)
    blocks = blocks_for(-(-problem.planes // together) * bands, 1)
    shared = together * taken * row_bytes + padding
    return Plan(False, width, bands, band_rows, lanes, blocks, together, True, shared)


def _staged(problem: Problem, band_rows: int) -> int:
    """Rows that a band of `band_rows` written rows holds in shared memory, at most."""
    if problem.forward:
        return min((band_rows - 1) * problem.stride + problem.kernel, problem.height)
    return min((band_rows + problem.kernel - 2) // problem.stride + 1, problem.out_height)


def _band(problem: Problem, rows: int) -> int:
    """The longest band that holds at most `rows` rows; below 1 where there is none."""
    if problem.forward:
        return (rows - problem.kernel) // problem.stride + 1 if rows >= problem.kernel else 0
    return rows * problem.stride - problem.kernel + 1


def plan_of(problem: Problem, target: Target) -> Plan:
    width = strip_bytes(problem, target)
    return tile_plan(problem, target) if width is None else strip_plan(problem, width, target)


def prepare(direction: str, spec: Spec) -> Prepared:
    """Raises CannotPrepare where it does not compile or no grid is large enough."""
    problem = _problem(direction, spec)
    plan = plan_of(problem, spec.target)
    schedule = "strips" if plan.strips else "tiles"
    shape = f"{plan.bytes}, {problem.kernel}, {problem.stride}, {reuse(spec)}, {_THREADS}"
    staged = "" if plan.strips else f", {str(plan.staged).lower()}"
    name = f"max_pool2d_{direction}_{schedule}<{TYPES[spec.dtype.name]}, {shape}{staged}>"
    (kernel,) = build(spec, _SOURCE, name)
    geometry = Geometry(plan.blocks, _THREADS, plan.shared_bytes)
    numbers = [problem.height, problem.width, problem.out_height, problem.out_width]
    numbers += [plan.bands, plan.band_rows, plan.lanes]
    if not plan.strips:
        numbers += [problem.padding, plan.together]
    sizes: list[numpy.generic] = [numpy.int64(problem.planes), *map(numpy.int32, numbers)]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        data = operands(tensors, spec.io.operands.values())
        if plan.strips:
            _require_alignment(spec, problem, plan, tensors)
        if not problem.planes:
            return lambda: None
        return kernel.bind(stream, geometry, (*data, *sizes))

    return Prepared(bind, choice={"schedule": schedule, "bytes": plan.bytes, "bands": plan.bands})


def _problem(direction: str, spec: Spec) -> Problem:
    dims = spec.dims
    *_, out_height, out_width = spec.io.operands["offset"].shape
    return Problem(
        forward=direction == "forward",
        planes=dims["images"] * dims["channels"],
        height=dims["height"],
        width=dims["width"],
        out_height=int(out_height),
        out_width=int(out_width),
        kernel=dims["kernel"],
        stride=dims["stride"],
        padding=dims["padding"],
        itemsize=spec.dtype.bits // 8,
    )


def _require_alignment(spec: Spec, problem: Problem, plan: Plan, tensors: Tensors) -> None:
    """Raises ValueError naming a tensor that does not begin where its vectors could."""
    for tensor in spec.io.operands.values():
        whole = tensor.shape[-1] == problem.width
        item = tensor.dtype.bits // 8
        wanted = plan.bytes if whole else plan.bytes // problem.itemsize // problem.stride * item
        if tensors[tensor.name].data_ptr() % wanted:
            raise ValueError(f"{tensor.name} must begin on {wanted} bytes; copy the slice")
