"""How near the `cpu` kernels come to what this machine can do, as ratios measured side by side.

    python -m membound.bench.ratios [--quick] [--json] [OPERATION...]

For each operation and direction, one process holds sets of buffers that are larger in total than
any cache, and runs over all of them with each contestant in turn, forwards and then backwards
(A B C C B A), so that a drift of the machine falls on all of them alike. Contestants are the `cpu`
kernel, the copies whose read shares enclose its own, eager PyTorch, torch.compile writing into
given outputs, and for a fused operation its chain. A ratio is the median over the passes.

Exits 1 where a goal is missed, 2 where an operation is unknown, 4 where there is nothing to run.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain as chained
from math import ceil, prod
from statistics import geometric_mean, median
from time import perf_counter

import torch

from ..kernels import chain
from ..kernels.discovery import Catalogue, Implementation, discover
from ..kernels.dtypes import DType, float32
from ..kernels.inputs import make_inputs
from ..kernels.operation import DIRECTIONS, Direction, DirectionName, Operation
from ..kernels.spec import CannotPrepare, Launch, Prepared, Spec
from ..kernels.target import MIB, Target
from .arena import Arena

GOAL_COPY = 1.2  # times as fast as torch's copy_
GOAL_CEILING = 0.80  # of the copies at the operation's read share
GOAL_COMPILED = 1.0  # times as fast as torch.compile
GOAL_GAIN = 0.9  # of the gain that the bytes of the chain predict

_CEILINGS = ("mix_0r1w", "mix_1r1w", "mix_2r1w", "mix_3r1w", "mix_1r0w")
_SET_BYTES = 128 * MIB
_FEWEST_ROUNDS = 3
_ENOUGH_SECONDS = 20.0
_COLUMNS = 4096  # of the copies


@dataclass(frozen=True)
class Contestant:
    """Something that is timed: one launch per set of buffers, and the bytes of one launch."""

    launches: Sequence[Launch]
    traffic: int
    read_share: float

    def seconds(self) -> float:
        """Time of one pass over all its sets."""
        started = perf_counter()
        for launch in self.launches:
            launch()
        return perf_counter() - started

    @property
    def pass_bytes(self) -> int:
        return self.traffic * len(self.launches)


@dataclass(frozen=True)
class Row:
    """One operation and direction. Ratios are above 1 where `cpu` is the faster; None: no rival."""

    operation: str
    direction: str
    gb_per_s: float
    ceiling_share: float
    to_eager: float | None
    to_compiled: float | None
    to_unfused: float | None
    predicted_gain: float | None
    goal: str
    met: bool


class Bench:
    """Memory, threads and the size of a measurement."""

    def __init__(self, catalogue: Catalogue, total_bytes: int, rounds: int, compiled: bool) -> None:
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(cores)
        self.catalogue = catalogue
        self.target = Target("cpu", platform.machine(), cores, 0)
        self.total_bytes, self.rounds, self.compiled = total_bytes, rounds, compiled
        self.arena = Arena(torch.device("cpu"), 4 * total_bytes)

    def measure(self, operation: Operation, direction: DirectionName) -> Row:
        """Raises CannotPrepare where the `cpu` kernel cannot run."""
        mark = self.arena.mark()
        try:
            contestants = self._contestants(operation, direction)
            taken = _alternate(contestants, self.rounds)
        finally:
            self.arena.release(mark)
        return self._judged(operation, direction, contestants, taken)

    def _contestants(self, operation: Operation, name: DirectionName) -> dict[str, Contestant]:
        spec = self._spec(operation, name)
        sets = self._sets(spec)
        found = {i.label: i for i in self.catalogue.implementations(operation)}
        if "cpu" not in found:
            raise CannotPrepare(f"{operation.name} has no cpu implementation")
        contestants = {"cpu": self._bound(found["cpu"], spec, sets)}
        for mix in self._enclosing(_read_share(spec.io)):
            contestants[mix] = self._ceiling(mix, spec.io, sets)
        if "torch" in found and found["torch"].refuses(name, spec.dtype.name) is None:
            contestants["torch"] = self._bound(found["torch"], spec, sets)
        if self.compiled:
            contestants["compile"] = _compiled(spec.io, sets)
        unfused = next((f"cpu:{v}" for v in operation.chains), None)
        if unfused in found:
            contestants["unfused"] = self._bound(found[unfused], spec, sets)
        return contestants

    def _spec(
        self, operation: Operation, name: DirectionName, dims: Mapping[str, int] | None = None
    ) -> Spec:
        """At `dims`, or at a scaled shape that moves `_SET_BYTES`."""
        if dims is None:
            dims = self._scaled(operation, name)
        dtype = _dtype(operation)
        io = operation.directions(dims, dtype).get(name)
        assert io is not None
        return Spec(operation, name, dims, dtype, io, self.target)

    def _scaled(self, operation: Operation, name: DirectionName) -> dict[str, int]:
        shape = next(shape for shape in operation.shapes if shape.kind == "scaled")
        assert shape.grow is not None
        length = shape.dims[shape.grow]
        io = operation.directions(shape.dims, _dtype(operation)).get(name)
        assert io is not None
        return shape.grown(max(1, round(length * _SET_BYTES / io.traffic))).dims

    def _sets(self, spec: Spec) -> list[dict[str, torch.Tensor]]:
        """Buffers with the same inputs, as many as the total asks for."""
        inputs = make_inputs(spec.operation, spec.direction, spec.dims, spec.dtype, seed=0)
        sets = []
        for _ in range(ceil(self.total_bytes / spec.io.traffic)):
            tensors = self.arena.take_all(spec.io.operands.values())
            for name, value in inputs.items():
                tensors[name].copy_(value)
            sets.append(tensors)
        return sets

    def _bound(
        self,
        implementation: Implementation,
        spec: Spec,
        sets: Sequence[Mapping[str, torch.Tensor]],
    ) -> Contestant:
        prepared = implementation.prepare(_variant(spec, implementation))
        scratch = self.arena.take_all(prepared.scratch)
        launches = [_warmed(prepared, {**tensors, **scratch}) for tensors in sets]
        return Contestant(launches, spec.io.traffic, _read_share(spec.io))

    def _enclosing(self, share: float) -> list[str]:
        """The mix of this read share, or the two nearest on either side of it."""
        shares = {name: self._mix_share(name) for name in _CEILINGS}
        below = max((s for s in shares.values() if s <= share + 0.01), default=0.0)
        above = min((s for s in shares.values() if s >= share - 0.01), default=1.0)
        return [name for name, s in shares.items() if s in {below, above}]

    def _mix_share(self, name: str) -> float:
        return _read_share(self._spec(self.catalogue.operations[name], "forward").io)

    def _ceiling(
        self, name: str, io: Direction, sets: Sequence[Mapping[str, torch.Tensor]]
    ) -> Contestant:
        """A copy on the memory of the operation; it writes only where the operation writes.

        Memory is not alike everywhere (huge pages, the pages of a host below), so the two must not
        run on different parts of it.
        """
        operation = self.catalogue.operations[name]
        stated = operation.directions({"rows": 1, "columns": 1}, float32).forward
        reads, writes = (
            sum(t.moved is None for t in some) for some in (stated.reads, stated.writes)
        )
        elements = _longest(io, reads, writes)
        dims = {"rows": elements // _COLUMNS, "columns": _COLUMNS}
        spec = self._spec(operation, "forward", dims)
        implementations = self.catalogue.implementations(operation)
        implementation = next(i for i in implementations if i.label == "cpu")
        shape = (dims["rows"], _COLUMNS)
        return self._bound(
            implementation, spec, [self._overlaid(spec.io, io, one, shape) for one in sets]
        )

    def _overlaid(
        self,
        mix: Direction,
        io: Direction,
        tensors: Mapping[str, torch.Tensor],
        shape: tuple[int, int],
    ) -> dict[str, torch.Tensor]:
        """The operands of a copy as parts of the operands of an operation."""
        outputs = _pieces([tensors[t.name] for t in io.writes if t.dtype == float32], prod(shape))
        found = {
            t.name: self.arena.take(t) if t.moved == 0 else next(outputs).view(shape)
            for t in mix.writes
        }
        inputs = _pieces([tensors[t.name] for t in io.reads if t.dtype == float32], prod(shape))
        rest = chained(inputs, outputs)
        return found | {t.name: next(rest).view(shape) for t in mix.reads}

    def _judged(
        self,
        operation: Operation,
        direction: DirectionName,
        contestants: Mapping[str, Contestant],
        taken: Mapping[str, Sequence[float]],
    ) -> Row:
        own = taken["cpu"]

        def ratio(rival: str) -> float | None:
            if rival not in taken:
                return None
            return median(theirs / ours for theirs, ours in zip(taken[rival], own, strict=True))

        share = median(
            _ceiling_seconds(contestants, taken, index) / ours for index, ours in enumerate(own)
        )
        row = Row(
            operation.name,
            direction,
            contestants["cpu"].pass_bytes / median(own) / 1e9,
            share,
            ratio("torch"),
            ratio("compile"),
            ratio("unfused"),
            self._predicted_gain(operation, direction),
            "",
            False,
        )
        return _with_goal(row)

    def _predicted_gain(self, operation: Operation, direction: DirectionName) -> float | None:
        spec = self._spec(operation, direction)
        for variant in operation.chains:
            apart = chain.traffic(
                self.catalogue.operations, operation, variant, direction, spec.dims, spec.dtype
            )
            return apart / (spec.io.schedule_bytes or spec.io.traffic) if apart else None
        return None


def _longest(io: Direction, reads: int, writes: int) -> int:
    """Elements of the longest arrays of which so many fit into the operands of `io`.

    What is written lies in outputs, so that inputs stay as they are; what is read lies anywhere.
    """
    outputs = [t.elements for t in io.writes if t.dtype == float32]
    everything = outputs + [t.elements for t in io.reads if t.dtype == float32]
    arrays = reads + writes
    lengths = {size // parts for size in everything for parts in range(1, arrays + 1)}
    if not outputs:
        raise CannotPrepare("the copies beside it write float32, and it has no such output")
    return max(
        n
        for n in lengths
        if n
        and sum(size // n for size in outputs) >= writes
        and sum(size // n for size in everything) >= arrays
    )


def _dtype(operation: Operation) -> DType:
    """float32, or what the operation is stated in where that is not among it."""
    return float32 if float32 in operation.dtypes else operation.dtypes[0]


def _pieces(tensors: Sequence[torch.Tensor], elements: int) -> Iterator[torch.Tensor]:
    """Disjoint runs of `elements` in the tensors, one after the other."""
    for tensor in tensors:
        flat = tensor.view(-1)
        for start in range(0, flat.numel() - elements + 1, elements):
            yield flat[start : start + elements]


def _variant(spec: Spec, implementation: Implementation) -> Spec:
    return replace(spec, variant=implementation.variant)


def _warmed(prepared: Prepared, tensors: Mapping[str, torch.Tensor]) -> Launch:
    launch = prepared.bind(tensors, None)
    launch()
    return launch


def _compiled(io: Direction, sets: Sequence[Mapping[str, torch.Tensor]]) -> Contestant:
    """torch.compile of the stated formula, written into outputs that are already there."""

    def into(reads: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        shape = outputs[0].shape
        values = io.reference(*reads) if reads else io.reference(*shape)
        values = (values,) if isinstance(values, torch.Tensor) else values
        for output, value in zip(outputs, values, strict=True):
            output.copy_(value)

    torch.compiler.reset()
    function = torch.compile(into, dynamic=False)

    def launch_of(tensors: Mapping[str, torch.Tensor]) -> Launch:
        reads = [_apart(tensors[t.name]) for t in io.reads]
        outputs = [_apart(tensors[t.name]) for t in io.outputs]
        return lambda: function(reads, outputs)

    launches = [launch_of(tensors) for tensors in sets]
    for launch in launches:
        launch()
    return Contestant(launches, io.traffic, _read_share(io))


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a storage of its own: inputs that share one are compiled defensively."""
    memory = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)


def _read_share(io: Direction) -> float:
    return io.bytes_read / io.traffic


def _alternate(contestants: Mapping[str, Contestant], rounds: int) -> dict[str, list[float]]:
    """Seconds of every pass, by contestant: in order, then in reverse, `rounds` times.

    Fewer times, but at least `_FEWEST_ROUNDS`, where a slow rival would make that take too long.
    """
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    started = perf_counter()
    for finished in range(rounds):
        if finished >= _FEWEST_ROUNDS and perf_counter() - started > _ENOUGH_SECONDS:
            break
        for name in (*names, *reversed(names)):
            taken[name].append(contestants[name].seconds())
    return taken


def _ceiling_seconds(
    contestants: Mapping[str, Contestant], taken: Mapping[str, Sequence[float]], index: int
) -> float:
    """Time the copies would have taken for the bytes of one pass, at the same read share.

    Between two shares the time per byte is interpolated: part of the bytes as the one, part as the
    other.
    """
    own = contestants["cpu"]
    points = sorted(
        (c.read_share, taken[name][index] / c.pass_bytes)
        for name, c in contestants.items()
        if name in _CEILINGS
    )
    (low, slow), (high, shigh) = points[0], points[-1]
    weight = (own.read_share - low) / (high - low) if high > low else 0.0
    return own.pass_bytes * ((1 - weight) * slow + weight * shigh)


def _with_goal(row: Row) -> Row:
    goals: list[tuple[str, bool]] = []
    if row.operation == "copy":
        goals.append((f">= {GOAL_COPY} x copy_", (row.to_eager or 0) >= GOAL_COPY))
    else:
        goals.append((f">= {GOAL_CEILING} of ceiling", row.ceiling_share >= GOAL_CEILING))
    if row.to_compiled is not None:
        goals.append(("no slower than compile", row.to_compiled >= GOAL_COMPILED))
    if row.to_unfused is not None and row.predicted_gain is not None:
        wanted = GOAL_GAIN * row.predicted_gain
        goals.append((f">= {wanted:.3f} x chain", row.to_unfused >= wanted))
    return replace(row, goal="; ".join(text for text, _ in goals), met=all(met for _, met in goals))


def _table(row: Row) -> str:
    def number(value: float | None) -> str:
        return f"{value:8.2f}" if value is not None else "       -"

    return (
        f"{row.operation:16} {row.direction:8} {row.gb_per_s:7.1f} {row.ceiling_share:8.2f} "
        f"{number(row.to_eager)} {number(row.to_compiled)} {number(row.to_unfused)} "
        f"{number(row.predicted_gain)}  {'met ' if row.met else 'MISS'} {row.goal}"
    )


_HEADER = "operation        direction  GB/s  ceiling  x torch x compile  x chain  predicted  goal"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m membound.bench.ratios")
    parser.add_argument("operations", nargs="*", metavar="OPERATION")
    parser.add_argument(
        "--quick", action="store_true", help="half the bytes, few rounds, no compile"
    )
    parser.add_argument("--json", action="store_true", help="one array of objects")
    chosen = parser.parse_args(arguments)
    catalogue = discover()
    unknown = [name for name in chosen.operations if name not in catalogue.operations]
    if unknown:
        print(f"unknown operation {unknown[0]!r}; known: {', '.join(catalogue.operations)}")
        return 2
    total = (1024 if chosen.quick else 2048) * MIB
    bench = Bench(catalogue, total, 4 if chosen.quick else 10, not chosen.quick)
    rows = []
    say: Callable[[str], None] = (lambda text: None) if chosen.json else print
    say(_HEADER)
    for operation in catalogue.operations.values():
        ours = catalogue.default(operation.name, "cpu") is not None
        if operation.name not in chosen.operations if chosen.operations else not ours:
            continue
        for direction in DIRECTIONS:
            if not operation.has(direction):
                continue
            try:
                rows.append(bench.measure(operation, direction))
            except CannotPrepare as reason:
                say(f"{operation.name:16} {direction:8} {reason}")
                continue
            say(_table(rows[-1]))
    if chosen.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    if not rows:
        return 4
    for rival, ratios in (
        ("torch", [row.to_eager for row in rows if row.to_eager]),
        ("compile", [row.to_compiled for row in rows if row.to_compiled]),
    ):
        if ratios:
            mean, least = geometric_mean(ratios), min(ratios)
            say(f"cpu over {rival}: {mean:.2f} in the geometric mean, {least:.2f} at least")
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
