"""One worker's device, memory and clock, and how a group of cases is measured on them.

Everything of a group runs on the same inputs: make them, compute the reference once, then for each
implementation prepare, verify, time, and verify again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter, time

import torch
from msgspec.structs import replace

from ..kernels.discovery import Catalogue, Implementation
from ..kernels.dtypes import DTYPES
from ..kernels.inputs import evaluate, make_inputs
from ..kernels.operation import Direction, Operation
from ..kernels.spec import CannotPrepare, Launch, Prepared, Spec
from ..kernels.target import Target
from ..results.record import Record
from .arena import Arena, OutOfBudget
from .cases import sets_for
from .memcpy import ReferenceCopy
from .protocol import Choice, Event, Finished, Item, Plan, Poisoned, Started
from .records import blank, ended, implementation_of, io_of
from .sampling import Rule, TimerError, collect
from .timers import Timing
from .verify import Verified, changed_input, changed_output, outputs_of, verify

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Group:
    """The inputs of one item, its reference, and the sets of buffers that rotate."""

    item: Item
    operation: Operation
    io: Direction
    pristine: Tensors
    exact: Tensors
    sets: list[Tensors]

    @property
    def set_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.io.operands.values())


@dataclass
class Session:
    plan: Plan
    catalogue: Catalogue
    target: Target
    device: torch.device
    arena: Arena
    timing: Timing

    def run(self) -> Iterator[Event]:
        """Walk the plan. Each case is announced before it is worked on."""
        done = set(self.plan.done)
        reference = ReferenceCopy(self.plan, self.catalogue, self.arena, self.timing)
        for item in self.plan.items:
            waiting = []
            for label, records in self._open_records(item, done):
                reason = item.skips.get(label)
                if reason is not None:
                    yield from _all(records, "skipped", reason)
                else:
                    waiting.append((label, records))
            if waiting:
                mark = self.arena.mark()
                yield from self._run_item(item, waiting)
                self.arena.release(mark)
                if not self._late():
                    yield from reference.measure(item.memcpy_position, done)

    def _open_records(
        self, item: Item, done: set[tuple[str, int]]
    ) -> Iterator[tuple[str, list[Record]]]:
        """Implementations of the item that still lack a record, with their blank records."""
        for label, position in zip(item.implementations, item.positions, strict=True):
            records = [
                blank(self.catalogue, item, label, cache, self.plan.process, position)
                for cache in item.caches
            ]
            records = [record for record in records if (record.case, position) not in done]
            if records:
                yield label, records

    def _run_item(self, item: Item, waiting: Sequence[tuple[str, list[Record]]]) -> Iterator[Event]:
        group: Group | None = None
        for label, records in waiting:
            if self._late():
                yield from _all(records, "skipped", "time limit reached before this case")
                continue
            yield Started([record.case for record in records], records[0].position)
            mark = self.arena.mark()
            try:
                if group is None:
                    group = self._make_group(item)
                    mark = self.arena.mark()
                yield from self._measure(group, label, records)
            except (CannotPrepare, OutOfBudget) as error:
                yield from _all(records, "skipped", str(error))
            except (MemoryError, torch.OutOfMemoryError) as error:
                yield from _all(records, "failed", f"out of memory: {_line(error)}")
            except TimerError as error:
                yield from _all(records, "failed", f"timer: {error}")
            except Exception as error:  # whatever a kernel does costs its own case only
                yield from _all(records, "failed", f"{type(error).__name__}: {_line(error)}")
                poisoned = self._poisoned()
                if poisoned is not None:
                    yield Poisoned(poisoned)
            finally:
                self.arena.release(mark)

    def _late(self) -> bool:
        return self.plan.deadline is not None and time() > self.plan.deadline

    def _make_group(self, item: Item) -> Group:
        operation = self.catalogue.operations[item.operation]
        dtype = DTYPES[item.dtype]
        io = io_of(operation, item)
        inputs = make_inputs(
            operation, item.direction, item.dims, dtype, seed=self.plan.seed, device=self.device
        )
        exact = evaluate(io, inputs, self.device)
        pristine = {t.name: self.arena.take(t).copy_(inputs[t.name]) for t in io.reads}
        del inputs
        operands = sum(tensor.nbytes for tensor in io.operands.values())
        count = max(sets_for(operands, cache, self.target.llc_bytes) for cache in item.caches)
        sets = []
        for _ in range(count):
            tensors = self.arena.take_all(io.operands.values())
            for name, value in pristine.items():
                tensors[name].copy_(value)
            sets.append(tensors)
        return Group(item, operation, io, pristine, exact, sets)

    def _measure(self, group: Group, label: str, records: Sequence[Record]) -> Iterator[Event]:
        implementation = implementation_of(self.catalogue, group.operation, label)
        if implementation is None:
            raise CannotPrepare(f"{group.operation.name} has no implementation {label}")
        stem = records[0].case.rpartition("/")[0]
        prepared = self._prepare(group, implementation, self.plan.choices.get(stem))
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
        )
        common = {
            "max_error": verified.max_error,
            "tolerance": verified.tolerance,
            "allocates": prepared.allocates,
            "choice": dict(prepared.choice),
        }
        for record in records:
            known = replace(record, **common)
            if verified.reason is not None:
                yield Finished(ended(known, "wrong", verified.reason))
            else:
                yield Finished(self._timed(group, known, sets, launches, verified))

    def _timed(
        self,
        group: Group,
        record: Record,
        sets: list[Tensors],
        launches: list[Launch],
        verified: Verified,
    ) -> Record:
        used = 1 if record.cache == "cold" else len(sets)
        # Outputs that launches allocate are held, so that they rotate as the bound ones do.
        held: deque[Sequence[torch.Tensor] | None] = deque(maxlen=used)

        def holding(launch: Launch) -> Launch:
            def run() -> None:
                held.append(launch())

            return run

        wrapped = [holding(launch) for launch in launches[:used]]
        overhead = self.timing.launch_overhead(wrapped[0])
        if record.cache == "cold":
            sample = self.timing.cold(wrapped[0])
        else:
            sample = self.timing.steady(wrapped)
        clocks: list[int | None] = []

        def clocked() -> float | None:
            seconds = sample()
            if seconds is not None:
                clocks.append(self.timing.clock_mhz())
            return seconds

        rule = Rule(seconds=self.plan.seconds_per_case, granularity=self.timing.granularity)
        samples = collect(clocked, rule, perf_counter)
        self.timing.synchronize()
        reason = _wrong_afterwards(group, sets[:used], held, verified)
        if reason is not None:
            return ended(record, "wrong", f"after timing: {reason}")
        known_clocks = [clock for clock in clocks if clock is not None]
        return replace(
            record,
            status="ok",
            timer=self.timing.timer,
            timer_tick_seconds=self.timing.granularity,
            seconds=[round(second, 9) for second in samples.seconds],
            sm_clock_mhz=known_clocks,
            throttled=self.timing.throttled(known_clocks),
            launch_overhead_seconds=overhead,
            stop=samples.stop,
            footprint_bytes=used * group.set_bytes,
        )

    def _prepare(
        self, group: Group, implementation: Implementation, choice: Choice | None
    ) -> Prepared:
        item = group.item
        return implementation.prepare(
            Spec(
                operation=group.operation,
                direction=item.direction,
                dims=item.dims,
                dtype=DTYPES[item.dtype],
                io=group.io,
                target=self.target,
                variant=implementation.variant,
                choice=choice,
            )
        )

    def _poisoned(self) -> str | None:
        try:
            self.timing.synchronize()
        except Exception as error:
            return _line(error)
        return None


def _wrong_afterwards(
    group: Group,
    sets: Sequence[Tensors],
    held: Iterable[Sequence[torch.Tensor] | None],
    verified: Verified,
) -> str | None:
    """Every set must hold the verified bytes: what was timed is what was checked."""
    for tensors, returned in zip(sets, held, strict=False):
        outputs = outputs_of(group.io, returned, tensors)
        reason = changed_output(
            group.io, outputs, verified.outputs, "differs from its verified bytes"
        )
        if reason is not None:
            return reason
    for tensors in sets:
        reason = changed_input(group.io, tensors, group.pristine)
        if reason is not None:
            return reason
    return None


def _all(records: Sequence[Record], status: str, reason: str) -> Iterator[Event]:
    yield from (Finished(ended(record, status, reason)) for record in records)


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
