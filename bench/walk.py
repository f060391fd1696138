"""A worker's walk through a plan: every case announced, measured, and handed over as a record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic, perf_counter

from msgspec.structs import replace

from ..results.record import Record
from .memcpy import ReferenceCopy
from .protocol import Event, Finished, Item, Plan, Poisoned, Started
from .records import blank, ended
from .sampling import Rule, collect
from .session import Group, Ready, Session, ending


@dataclass
class Walk:
    plan: Plan
    session: Session

    def run(self) -> Iterator[Event]:
        """Walk the plan. Each case is announced before it is worked on."""
        session, done = self.session, set(self.plan.done)
        reference = ReferenceCopy(self.plan, session.catalogue, session.arena, session.timing)
        for item in self.plan.items:
            waiting = []
            for label, records in self._open_records(item, done):
                reason = item.skips.get(label)
                if reason is not None:
                    yield from _all(records, "skipped", reason)
                else:
                    waiting.append((label, records))
            if waiting:
                mark = session.arena.mark()
                yield from self._run_item(item, waiting)
                session.arena.release(mark)
                if not self._late():
                    yield from reference.measure(item.memcpy_position, done)

    def _open_records(
        self, item: Item, done: set[tuple[str, int]]
    ) -> Iterator[tuple[str, list[Record]]]:
        """Implementations of the item that still lack a record, with their blank records."""
        for label, position in zip(item.implementations, item.positions, strict=True):
            records = [
                blank(self.session.catalogue, item, label, cache, self.plan.process, position)
                for cache in item.caches
            ]
            records = [record for record in records if (record.case, position) not in done]
            if records:
                yield label, records

    def _run_item(self, item: Item, waiting: Sequence[tuple[str, list[Record]]]) -> Iterator[Event]:
        group: Group | None = None
        arena = self.session.arena
        for label, records in waiting:
            if self._late():
                yield from _all(records, "skipped", "time limit reached before this case")
                continue
            yield Started([record.case for record in records], records[0].position)
            mark, finished = arena.mark(), 0
            try:
                if group is None:
                    group = self.session.make_group(item)
                    mark = arena.mark()
                for event in self._measure(group, label, records):
                    yield event
                    finished += 1
            except Exception as error:  # whatever a kernel does costs its own case only
                status, reason = ending(error)
                yield from _all(records[finished:], status, reason)
                poisoned = self.session.poisoned()
                if poisoned is not None:
                    yield Poisoned(poisoned)
            finally:
                arena.release(mark)

    def _late(self) -> bool:
        return self.plan.deadline is not None and monotonic() > self.plan.deadline

    def _measure(self, group: Group, label: str, records: Sequence[Record]) -> Iterator[Event]:
        """One event a record, in their order."""
        stem = records[0].case.rpartition("/")[0]
        ready = self.session.ready(group, label, self.plan.choices.get(stem))
        verified = ready.verified
        common = {
            "max_error": verified.max_error,
            "tolerance": verified.tolerance,
            "allocates": ready.prepared.allocates,
            "in_place": bool(ready.prepared.overwritten),
            "choice": dict(ready.prepared.choice),
        }
        if ready.prepared.schedule_bytes is not None:
            common["schedule_bytes"] = ready.prepared.schedule_bytes
        for record in records:
            known = replace(record, **common)
            refused = self.session.refuses(ready, record.cache)
            if verified.reason is not None:
                yield Finished(ended(known, "wrong", verified.reason))
            elif refused is not None:
                yield Finished(ended(known, "skipped", refused))
            else:
                yield Finished(self._timed(ready, known))

    def _timed(self, ready: Ready, record: Record) -> Record:
        timing = self.session.timing
        sampler = self.session.sampler(ready, record.cache)
        rule = Rule(seconds=self.plan.seconds_per_case, granularity=timing.granularity)
        samples = collect(sampler.sample, rule, perf_counter)
        timing.synchronize()
        reason = sampler.wrong()
        if reason is not None:
            return ended(record, "wrong", f"after timing: {reason}")
        known_clocks = [clock for clock in sampler.clocks if clock is not None]
        return replace(
            record,
            status="ok",
            timer=timing.timer,
            timer_tick_seconds=timing.granularity,
            seconds=[round(second, 9) for second in samples.seconds],
            sm_clock_mhz=known_clocks,
            throttled=timing.throttled(known_clocks),
            launch_overhead_seconds=sampler.launch_overhead,
            stop=samples.stop,
            footprint_bytes=len(sampler.sets) * ready.set_bytes,
            eviction_multiple=timing.eviction_multiple if record.cache == "cold" else None,
        )


def _all(records: Sequence[Record], status: str, reason: str) -> Iterator[Event]:
    yield from (Finished(ended(record, status, reason)) for record in records)
