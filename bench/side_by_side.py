"""Rivals of the `cpu` kernels on the same buffers, timed in turn in one process.

One process holds sets of buffers that are larger in total than any cache, and runs over all of them
with each contestant in turn, forwards and then backwards (A B C C B A), so that a drift of the
machine falls on all of them alike.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain as chained
from math import ceil, prod
from time import perf_counter

import torch

from ..kernels.discovery import Catalogue, Implementation
from ..kernels.dtypes import DType, float32
from ..kernels.inputs import make_inputs
from ..kernels.operation import Direction, DirectionName, Operation
from ..kernels.spec import CannotPrepare, Launch, Prepared, Spec
from ..kernels.target import MIB, Target
from .arena import Arena
from .cases import CEILINGS

_SET_BYTES = 128 * MIB
_FEWEST_ROUNDS = 3
_ENOUGH_SECONDS = 20.0
_COLUMNS = 4096  # of the copies


@dataclass(frozen=True)
class Contestant:
    """Something that is timed: one launch per set of buffers, and the bytes of one launch.

    allocates: it allocates its outputs inside the clock.
    """

    launches: Sequence[Launch]
    traffic: int
    read_share: float
    allocates: bool = False

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
class Taken:
    """Seconds of every pass by contestant: "cpu", the copies whose read shares enclose its own, and
    what there is of "torch", "compile" and "unfused"."""

    spec: Spec
    contestants: Mapping[str, Contestant]
    seconds: Mapping[str, Sequence[float]]


class SideBySide:
    """Memory, threads and the size of a measurement."""

    def __init__(self, catalogue: Catalogue, total_bytes: int, rounds: int, compiled: bool) -> None:
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(cores)
        self.catalogue = catalogue
        self.target = Target("cpu", platform.machine(), cores, 0)
        self.total_bytes, self.rounds, self.compiled = total_bytes, rounds, compiled
        self.arena = Arena(torch.device("cpu"), 4 * total_bytes)

    def measure(self, operation: Operation, direction: DirectionName) -> Taken:
        """Raises CannotPrepare where the `cpu` kernel cannot run."""
        spec = self._spec(operation, direction)
        mark = self.arena.mark()
        try:
            contestants = self._contestants(spec)
            seconds = _alternate(contestants, self.rounds)
        finally:
            self.arena.release(mark)
        return Taken(spec, contestants, seconds)

    def _contestants(self, spec: Spec) -> dict[str, Contestant]:
        operation, sets = spec.operation, self._sets(spec)
        found = {i.label: i for i in self.catalogue.implementations(operation)}
        if "cpu" not in found:
            raise CannotPrepare(f"{operation.name} has no cpu implementation")
        contestants = {"cpu": self._bound(found["cpu"], spec, sets)}
        for mix in self._enclosing(_read_share(spec.io)):
            contestants[mix] = self._ceiling(mix, spec.io, sets)
        direction, dtype = spec.direction, spec.dtype.name
        if "torch" in found and found["torch"].refuses(direction, dtype) is None:
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
        share = _read_share(spec.io)
        return Contestant(launches, spec.io.traffic, share, prepared.allocates)

    def _enclosing(self, share: float) -> list[str]:
        """The mix of this read share, or the two nearest on either side of it."""
        shares = {name: self._mix_share(name) for name in CEILINGS}
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
