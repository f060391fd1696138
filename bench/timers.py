"""How one sample is taken. The CPU's timer is here; the GPU's are in `gpu.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, Protocol

from ..kernels.spec import Launch
from ..results.record import Timer
from .eviction import CpuEvictor

Sample = Callable[[], float | None]
"""Seconds of one launch; None where the sample is void."""

GATED: tuple[Timer, ...] = ("events", "graph")
"""Timers that hold the device back until everything of a sample is enqueued."""

_WARM_SECONDS = 0.3
_OVERHEAD_CALLS = 16
_OVERHEAD_SECONDS = 0.02


class Timing(Protocol):
    """One device's clock, caches and stream."""

    timer: Timer
    granularity: float

    @property
    def eviction_multiple(self) -> int | None:
        """Last-level caches read before a cold sample."""

    @property
    def stream(self) -> Any:
        """torch.cuda.Stream that launches go to; None on the CPU."""

    def cold(self, launch: Launch) -> Sample:
        """A sample starts with the last-level cache holding other, clean lines.

        Raises TimerError where that cannot be brought about.
        """

    def steady(self, launches: Sequence[Launch]) -> Sample:
        """Launches follow one another over rotating buffers, as write debts of earlier ones are
        paid within later ones."""

    def synchronize(self) -> None: ...

    def launch_overhead(self, launch: Launch) -> float | None:
        """Host seconds that one launch costs. On the CPU, where the work is part of them, `launch`
        must have next to none. None where it cannot be told."""

    def clock_mhz(self) -> int | None:
        """The clock during the last sample; None where it is unknown."""

    def throttled(self, mhz: Sequence[int]) -> bool | None:
        """Whether samples at these clocks were throttled; None where that is unknown."""


class WallTiming:
    """The CPU: launches return when they are done, so the wall clock around one is its time."""

    timer: Timer = "wall"

    def __init__(self, evictor: CpuEvictor) -> None:
        self.granularity = wall_granularity()
        self._evictor = evictor

    @property
    def eviction_multiple(self) -> int | None:
        return self._evictor.multiple

    @property
    def stream(self) -> None:
        return None

    def cold(self, launch: Launch) -> Sample:
        self._evictor.prove()

        def sample() -> float:
            self._evictor.evict()
            return _timed(launch)

        return sample

    def steady(self, launches: Sequence[Launch]) -> Sample:
        rotation = cycle(launches)
        spent = 0.0
        for _ in launches:  # leave behind the write debt that a sample is to find
            spent += _timed(next(rotation))
            if spent > _WARM_SECONDS:  # so slow that the debt is a small part of it
                break
        return lambda: _timed(next(rotation))

    def synchronize(self) -> None:
        pass

    def launch_overhead(self, launch: Launch) -> float:
        """The least of some calls: waiting for a busy core is not the launch's."""
        launch()
        seconds = [_timed(launch)]
        while len(seconds) < _OVERHEAD_CALLS and sum(seconds) < _OVERHEAD_SECONDS:
            seconds.append(_timed(launch))
        return round(min(seconds), 9)

    def clock_mhz(self) -> None:
        return None

    def throttled(self, mhz: Sequence[int]) -> None:
        return None


def wall_granularity() -> float:
    """Smallest step of the wall clock that was seen, in seconds."""
    steps = []
    for _ in range(100):
        start = time.perf_counter_ns()
        while (now := time.perf_counter_ns()) == start:
            pass
        steps.append(now - start)
    return min(steps) * 1e-9


def _timed(launch: Launch) -> float:
    start = time.perf_counter_ns()
    launch()
    return (time.perf_counter_ns() - start) * 1e-9
