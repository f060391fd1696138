"""The reference copy: the driver's memcpy (on the CPU torch's copy), re-timed between groups.

It is not code under test: its changes over a run are the machine's, and it is one of the ceilings.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import torch
from msgspec.structs import replace

from ..kernels.discovery import Catalogue
from ..kernels.spec import Launch
from ..results.record import Cache
from .arena import Arena, OutOfBudget
from .cases import sets_for
from .protocol import Finished, Plan, Started
from .records import MEMCPY, blank, ended, io_of
from .sampling import Rule, TimerError, collect
from .timers import Timing
from .verify import same_bytes

_RULE = Rule(target=0.01, min_samples=10, max_samples=20, seconds=0.2)


class ReferenceCopy:
    """Buffers that stay for the life of the worker, and the copy between them."""

    def __init__(self, plan: Plan, catalogue: Catalogue, arena: Arena, timing: Timing) -> None:
        self._plan, self._catalogue, self._timing = plan, catalogue, timing
        item = plan.memcpy
        io = io_of(catalogue.operations[item.operation], item)
        (source,), (target,) = io.reads, io.writes
        llc = int(plan.target["llc_bytes"])
        count = max(sets_for(io.traffic, cache, llc) for cache in item.caches)
        self._set_bytes = io.traffic
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._reason: str | None = None
        try:
            for _ in range(count):
                self._pairs.append((arena.take(source).fill_(1.7109375), arena.take(target)))
        except OutOfBudget as error:
            self._reason = str(error)

    def measure(self, position: int, done: set[tuple[str, int]]) -> Iterator[Started | Finished]:
        """One record per cache state, unless it is there already."""
        item = self._plan.memcpy
        for cache in item.caches:
            record = blank(self._catalogue, item, MEMCPY, cache, self._plan.process, position)
            if (record.case, position) in done:
                continue
            yield Started([record.case], position)
            if self._reason is not None:
                yield Finished(ended(record, "skipped", self._reason))
                continue
            try:
                used = 1 if cache == "cold" else len(self._pairs)
                seconds, stop = self._time(cache, used)
            except TimerError as error:
                yield Finished(ended(record, "failed", f"timer: {error}"))
                continue
            if not all(same_bytes(source, target) for source, target in self._pairs[:used]):
                yield Finished(ended(record, "wrong", "the copy differs from its source"))
                continue
            yield Finished(
                replace(
                    record,
                    status="ok",
                    timer=self._timing.timer,
                    timer_tick_seconds=self._timing.granularity,
                    seconds=[round(second, 9) for second in seconds],
                    stop=stop,
                    footprint_bytes=used * self._set_bytes,
                    eviction_multiple=self._timing.eviction_multiple if cache == "cold" else None,
                    allocates=False,
                )
            )

    def _time(self, cache: Cache, used: int) -> tuple[list[float], str]:
        def launch_of(source: torch.Tensor, target: torch.Tensor) -> Launch:
            def launch() -> None:
                target.copy_(source)

            return launch

        launches = [launch_of(source, target) for source, target in self._pairs[:used]]
        timing = self._timing
        sample = timing.cold(launches[0]) if cache == "cold" else timing.steady(launches)
        samples = collect(sample, _RULE, perf_counter)
        timing.synchronize()
        return samples.seconds, samples.stop
