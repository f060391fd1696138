"""One worker's device, memory and clock, and how a case is brought to where it can be sampled.

Everything of a group runs on the same inputs: make them, compute the reference once, then for each
implementation prepare, verify, time, and verify again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch
from msgspec import structs

from ..kernels.discovery import Catalogue, Implementation
from ..kernels.dtypes import DTYPES
from ..kernels.inputs import evaluate, make_inputs
from ..kernels.operation import Direction, Operation
from ..kernels.spec import CannotPrepare, DoesNotCompile, Launch, Prepared, Spec
from ..kernels.target import Target
from ..results.record import Cache
from .arena import Arena, OutOfBudget
from .cases import sets_for
from .protocol import Choice, Item
from .records import implementation_of, io_of
from .sampling import TimerError
from .timers import GATED, Sample, Timing
from .verify import Verified, changed_input, changed_output, outputs_of, restore, verify

Tensors = dict[str, torch.Tensor]

_SAYS_WHY = re.compile(r"\b(error|fatal)\b", re.IGNORECASE)
_MAX_REASON = 300  # characters of an error's text in a record
_QUICK_TO_PREPARE = 0.002
"""Seconds: what took longer compiled something, or loaded it, and would do so for each shape."""


@dataclass
class Group:
    """The inputs of one item, its reference, and the sets of buffers that rotate.

    intact: every set is known to hold the inputs as they were made.
    """

    item: Item
    operation: Operation
    io: Direction
    pristine: Tensors
    exact: Tensors
    sets: list[Tensors]
    intact: bool = True

    def restore(self) -> None:
        """Put back the inputs, where something may have written over them."""
        for tensors in () if self.intact else self.sets:
            restore(tensors, self.pristine, self.pristine)
        self.intact = True


@dataclass(frozen=True)
class Ready:
    """An implementation prepared, bound to every set of its group, and verified on the first."""

    group: Group
    implementation: Implementation
    prepared: Prepared
    prepare_seconds: float
    sets: list[Tensors]
    launches: list[Launch]
    verified: Verified

    @property
    def set_bytes(self) -> int:
        """Bytes of the operands in one set of buffers."""
        operands = self.group.io.operands.values()
        return sum(t.nbytes for t in operands if t.name not in self.prepared.in_place)


@dataclass
class Sampler:
    """A verified case in one cache state, for as many samples as are wanted.

    clocks: MHz during each valid sample, None where unknown.
    """

    sample: Sample
    launch_overhead: float | None
    ready: Ready
    sets: list[Tensors]
    held: dict[int, Sequence[torch.Tensor] | None]  # by set, what its last run returned
    clocks: list[int | None] = field(default_factory=list)

    def wrong(self) -> str | None:
        """Why what was timed is not what was verified; None where it is."""
        reason = _wrong_afterwards(self.ready, self.sets, self.held)
        self.ready.group.intact = reason is None and not self.ready.prepared.overwritten
        return reason


@dataclass
class Session:
    seed: int
    catalogue: Catalogue
    target: Target
    device: torch.device
    arena: Arena
    timing: Timing
    missing: Mapping[str, str] = field(default_factory=dict)  # what the device refused -> why

    def make_group(self, item: Item) -> Group:
        operation = self.catalogue.operations[item.operation]
        dtype = DTYPES[item.dtype]
        io = io_of(operation, item)
        inputs = make_inputs(
            operation, item.direction, item.dims, dtype, seed=self.seed, device=self.device
        )
        exact = evaluate(io, inputs, self.device)
        pristine = {t.name: self.arena.take(t).copy_(inputs[t.name]) for t in io.reads}
        del inputs
        operands = sum(tensor.nbytes for tensor in io.operands.values())
        count = max(sets_for(operands, cache, self.target.llc_bytes) for cache in item.caches)
        sets = []
        for _ in range(count):
            tensors = self.arena.take_all(io.operands.values(), item.placement)
            for name, value in pristine.items():
                tensors[name].copy_(value)
            sets.append(tensors)
        return Group(item, operation, io, pristine, exact, sets)

    def ready(self, group: Group, label: str, choice: Choice | None) -> Ready:
        """Prepare, bind and verify an implementation. Raises what `ending` knows the name of.

        choice: the configuration chosen earlier, None to choose now.
        """
        implementation = implementation_of(self.catalogue, group.operation, label)
        if implementation is None:
            raise CannotPrepare(f"{group.operation.name} has no implementation {label}")
        group.restore()
        start = perf_counter()
        prepared = implementation.prepare(self._spec(group, implementation, choice))
        prepare_seconds = perf_counter() - start
        group.intact = False
        sets = [dict(tensors) for tensors in group.sets]
        for tensors in sets:
            tensors |= self.arena.take_all(prepared.scratch)
        launches = [prepared.bind(tensors, self.timing.stream) for tensors in sets]
        verified = verify(
            group.io,
            launches[0],
            sets[0],
            group.pristine,
            group.exact,
            self.timing.synchronize,
            self.arena.take,
            prepared,
        )
        group.intact = verified.reason is None and not prepared.overwritten
        return Ready(group, implementation, prepared, prepare_seconds, sets, launches, verified)

    def refuses(self, ready: Ready, cache: Cache) -> str | None:
        """Why it cannot be timed in this cache state by this timer, None where it can."""
        written = ", ".join(ready.prepared.overwritten)
        if cache == "steady" and written:
            return f"writes over {written}, which nothing restores between back-to-back launches"
        if ready.prepared.waits and self.timing.timer in GATED:
            return (
                f"waits for the device within a launch, which the gate of timer {self.timing.timer}"
                " holds back; --timer events-ungated has none"
            )
        return None

    def sampler(self, ready: Ready, cache: Cache) -> Sampler:
        """What takes samples of a verified implementation."""
        used = 1 if cache == "cold" else len(ready.sets)
        # Outputs that launches allocate are held, so that they rotate as the bound ones do.
        held: dict[int, Sequence[torch.Tensor] | None] = {}

        def holding(index: int, launch: Launch) -> Launch:
            def run() -> None:
                held[index] = launch()

            return run

        wrapped = [holding(index, run) for index, run in enumerate(ready.launches[:used])]
        overhead = self._launch_overhead(ready, wrapped[0])
        sample = self.timing.cold(wrapped[0]) if cache == "cold" else self.timing.steady(wrapped)

        group, overwritten = ready.group, ready.prepared.overwritten
        group.intact = False

        def clocked() -> float | None:
            restore(ready.sets[0], group.pristine, overwritten)
            seconds = sample()
            if seconds is not None:
                sampler.clocks.append(self.timing.clock_mhz())
            return seconds

        sampler = Sampler(clocked, overhead, ready, ready.sets[:used], held)
        return sampler

    def _launch_overhead(self, ready: Ready, launch: Launch) -> float | None:
        """On the CPU that of the same implementation at a shape with next to no work; None where
        that is not to be had without compiling anew."""
        if self.device.type != "cpu":
            return self.timing.launch_overhead(launch)
        dims = _smallest_dims(ready.group)
        if dims is None or ready.prepare_seconds > _QUICK_TO_PREPARE:
            return None
        mark = self.arena.mark()
        try:
            return self.timing.launch_overhead(self._tiny_launch(ready, dims))
        except Exception:  # it is not what is being measured
            return None
        finally:
            self.arena.release(mark)

    def _tiny_launch(self, ready: Ready, dims: dict[str, int]) -> Launch:
        group, implementation = ready.group, ready.implementation
        tiny = replace(group, item=structs.replace(group.item, dims=dims))
        tiny = replace(tiny, io=io_of(group.operation, tiny.item))
        choice = dict(ready.prepared.choice)
        prepared = implementation.prepare(self._spec(tiny, implementation, choice))
        tensors = self.arena.take_all([*tiny.io.operands.values(), *prepared.scratch])
        item, operation = tiny.item, group.operation
        inputs = make_inputs(
            operation,
            item.direction,
            dims,
            DTYPES[item.dtype],
            seed=self.seed,
            device=self.device,
        )
        for tensor in tiny.io.reads:
            tensors[tensor.name].copy_(inputs[tensor.name])
        return prepared.bind(tensors, self.timing.stream)

    def _spec(self, group: Group, implementation: Implementation, choice: Choice | None) -> Spec:
        return Spec(
            operation=group.operation,
            direction=group.item.direction,
            dims=group.item.dims,
            dtype=DTYPES[group.item.dtype],
            io=group.io,
            target=self.target,
            variant=implementation.variant,
            choice=choice,
        )

    def poisoned(self) -> str | None:
        """Why the device is unusable, None where it is not."""
        try:
            self.timing.synchronize()
        except Exception as error:
            return _line(error)
        return None


def _smallest_dims(group: Group) -> dict[str, int] | None:
    """The operation's smallest shape that is not empty; None where it states no small one."""
    dtype, direction = DTYPES[group.item.dtype], group.item.direction
    moved: list[tuple[int, dict[str, int]]] = []
    for shape in group.operation.shapes:
        io = group.operation.directions(shape.dims, dtype).get(direction)
        if shape.kind == "edge" and io and all(t.elements for t in io.operands.values()):
            moved.append((io.traffic, shape.dims))
    return min(moved, key=lambda known: known[0])[1] if moved else None


def ending(error: Exception) -> tuple[str, str]:
    """Status and reason of a case that ended in `error`."""
    if isinstance(error, DoesNotCompile):
        return "failed", f"does not compile: {error}"
    if isinstance(error, CannotPrepare | OutOfBudget):
        return "skipped", str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "failed", f"out of memory: {_line(error)}"
    if isinstance(error, TimerError):
        return "failed", f"timer: {error}"
    return "failed", f"{type(error).__name__}: {_line(error)}"


def _wrong_afterwards(
    ready: Ready, sets: Sequence[Tensors], held: Mapping[int, Sequence[torch.Tensor] | None]
) -> str | None:
    """Every set that ran must hold the verified bytes: what was timed is what was checked."""
    io, prepared, kept = ready.group.io, ready.prepared, ready.verified.outputs
    for index, returned in held.items():
        outputs = outputs_of(io, returned, sets[index], prepared.in_place)
        reason = changed_output(io, outputs, kept, "differs from its verified bytes")
        if reason is not None:
            return reason
    for tensors in sets:
        reason = changed_input(io, tensors, ready.group.pristine, prepared.overwritten)
        if reason is not None:
            return reason
    return None


def _line(error: BaseException) -> str:
    """What matters of an error's lines: compilers say where first, and why in a line that says so
    or at the end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = next((line for line in lines[1:] if _SAYS_WHY.search(line)), None)
    some = [*lines[:1], why] if why else dict.fromkeys([*lines[:2], *lines[-1:]])
    return "; ".join(some)[:_MAX_REASON] or type(error).__name__
