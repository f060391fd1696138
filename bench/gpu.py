"""The GPU's clock: CUDA events behind a gate, or a graph's replays, and the clock it ran at.

Without the gate, for where it would stall: `UngatedTiming` here, activity records in `cupti.py`.

Order of a cold sample: evict, close the gate, start, launch, stop, open. At most
`_MAX_BEHIND_GATE` launches wait behind a gate, since the launch queue is finite; whatever compiles,
loads or allocates on first use is run before the gate is closed for the first time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import ceil
from statistics import median
from typing import Any, Protocol

from ..kernels.spec import Launch
from ..results.record import Timer
from .eviction import EMPTIED, EVICTION_MULTIPLES
from .timers import Sample

_MAX_BEHIND_GATE = 128
_EVENT_TICK_SECONDS = 0.5e-6
_MIN_TICKS = 200
"""An interval shorter than this many ticks of a clock is timed over several launches, or has no
frequency."""
_GLOBAL_TIMER_TICK_NANOSECONDS = 1000
"""Coarsest tick of globaltimer that is documented (CUDA binary utilities: about 1 µs)."""
_THROTTLED_BELOW = 0.75
_MAX_THROTTLED_RETRIES = 10
_REREADS = 9


class Runtime(Protocol):
    """What `CudaRuntime` gives; a stand-in in the tests."""

    @property
    def stream(self) -> Any: ...
    def size_evictor(self, multiple: int) -> None: ...
    def evict(self) -> None: ...
    def reread(self) -> None: ...
    def clear(self) -> None: ...
    def close_gate(self) -> None: ...
    def open_gate(self) -> bool: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def elapsed_seconds(self) -> float: ...
    def cycles_and_nanoseconds(self) -> tuple[int, int]: ...
    def driver_allocations(self) -> int: ...
    def capture(self, launches: Sequence[Launch]) -> Launch: ...
    def synchronize(self) -> None: ...


class GpuTiming:
    """Samples on one stream. With `graph`, steady launches are replayed from a graph.

    default_mhz: the clock below three quarters of which a sample is throttled; None: unknown,
    which is not throttled.
    """

    timer: Timer = "events"
    _tick_seconds = _EVENT_TICK_SECONDS

    def __init__(self, runtime: Runtime, *, graph: bool = False, default_mhz: int | None) -> None:
        if graph:
            self.timer = "graph"
        self._runtime, self._graph, self._default_mhz = runtime, graph, default_mhz
        self.granularity = self._tick_seconds  # seconds a sample may be off, per launch
        self._mhz: int | None = None
        self._retries = 0
        self.eviction_multiple = self._prove_eviction()

    @property
    def stream(self) -> Any:
        return self._runtime.stream

    def synchronize(self) -> None:
        self._runtime.synchronize()

    def clock_mhz(self) -> int | None:
        """The multiprocessors' clock during the last sample; None where it is unknown."""
        return self._mhz

    def throttled(self, mhz: Sequence[int]) -> bool | None:
        """Whether samples ran below three quarters of the default clock; None: unknown."""
        if self._default_mhz is None or not mhz:
            return None
        return median(mhz) < _THROTTLED_BELOW * self._default_mhz

    def cold(self, launch: Launch) -> Sample:
        self._begin(launch)
        self.granularity = self._tick_seconds

        def sample() -> float | None:
            self._runtime.evict()
            return self._gated([launch])

        return sample

    def steady(self, launches: Sequence[Launch]) -> Sample:
        """A sample is several launches: before the clock as many as rotate, to leave behind the
        write debt that the timed ones find, then enough of them for the clock's tick."""
        self._begin(*launches)
        lead = list(launches[: _MAX_BEHIND_GATE // 2])
        timed = self._enough(launches)
        self.granularity = self._tick_seconds / len(timed)
        if not self._graph:
            return lambda: self._gated(timed, lead)
        replay, lead_replay = self._runtime.capture(timed), self._runtime.capture(lead)
        self._warm(replay, lead_replay)
        return lambda: self._gated([replay], [lead_replay], per=len(timed))

    def launch_overhead(self, launch: Launch) -> float | None:
        """Host seconds to enqueue one launch, the median of some, while the gate holds the GPU."""
        self._warm(launch)
        seconds = []
        self._hold()
        for _ in range(16):
            start = time.perf_counter_ns()
            launch()
            seconds.append((time.perf_counter_ns() - start) * 1e-9)
        return round(median(seconds), 9) if self._release() else None

    def _prove_eviction(self) -> int:
        """Last-level caches to read for emptying one: the evictor is doubled until a quarter of the
        cache is read again about as slowly as after the largest one."""
        runtime, largest = self._runtime, EVICTION_MULTIPLES[-1]
        runtime.size_evictor(largest)
        self._warm(runtime.evict, runtime.reread)
        cached, uncached = self._reread_seconds(evict=False), self._reread_seconds(evict=True)
        for multiple in EVICTION_MULTIPLES:
            runtime.size_evictor(multiple)
            self._warm(runtime.evict)
            if self._reread_seconds(evict=True) - cached >= EMPTIED * (uncached - cached):
                return multiple
        return largest

    def _reread_seconds(self, *, evict: bool) -> float:
        seconds = []
        for _ in range(_REREADS):
            self._runtime.reread()
            if evict:
                self._runtime.evict()
            seconds.append(self._gated([self._runtime.reread]))
        return median([second for second in seconds if second is not None] or [0.0])

    def _gated(
        self, timed: Sequence[Launch], lead: Sequence[Launch] = (), per: int | None = None
    ) -> float | None:
        """Seconds per launch of `timed`; None where the sample is void."""
        runtime = self._runtime
        allocations = runtime.driver_allocations()
        self._hold()
        for launch in lead:
            launch()
        runtime.start()
        for launch in timed:
            launch()
        runtime.stop()
        held = self._release()
        if not held or runtime.driver_allocations() != allocations:
            return None
        self._mhz = _megahertz(*runtime.cycles_and_nanoseconds())
        if self._slow(self._mhz) and self._retries < _MAX_THROTTLED_RETRIES:
            self._retries += 1
            return None
        seconds = self._elapsed(len(timed))
        return None if seconds is None else seconds / (per or len(timed))

    def _hold(self) -> None:
        """Nothing enqueued from here on runs before `_release`."""
        self._runtime.close_gate()

    def _release(self) -> bool:
        """Run and wait for what is enqueued; False where it had not been held."""
        return self._runtime.open_gate()

    def _elapsed(self, launches: int) -> float | None:
        """Seconds that `launches` took between start and stop; None where that is not known."""
        return self._runtime.elapsed_seconds()

    def _slow(self, mhz: int | None) -> bool:
        return mhz is not None and bool(self.throttled([mhz]))

    def _begin(self, *launches: Launch) -> None:
        self._retries = 0
        self._warm(*launches)

    def _warm(self, *launches: Launch) -> None:
        """Whatever compiles, loads or allocates on first use must not do so behind the gate."""
        for launch in launches:
            launch()
        self._runtime.synchronize()

    def _enough(self, launches: Sequence[Launch]) -> list[Launch]:
        tick = self._tick_seconds
        once = self._gated([launches[0]]) or tick
        least = ceil(_MIN_TICKS * tick / max(once, tick))
        count = max(1, min(least, _MAX_BEHIND_GATE // 2))
        return [launches[i % len(launches)] for i in range(count)]


class UngatedTiming(GpuTiming):
    """Events with no gate in the stream: what the host is late to enqueue is part of the interval.

    The eviction before a cold launch, or the lead before steady ones, keeps the GPU busy while the
    host enqueues; a launch of several short kernels can still outrun it. So it has a name of its
    own, and is compared with its own kind only.
    """

    timer: Timer = "events-ungated"

    def __init__(self, runtime: Runtime, *, default_mhz: int | None) -> None:
        super().__init__(runtime, default_mhz=default_mhz)

    def _hold(self) -> None:
        self._runtime.clear()

    def _release(self) -> bool:
        self._runtime.synchronize()
        return True


def _megahertz(cycles: int, nanoseconds: int) -> int | None:
    """None where the window is too short for globaltimer's tick, or a stamp is missing."""
    if cycles <= 0 or nanoseconds < _MIN_TICKS * _GLOBAL_TIMER_TICK_NANOSECONDS:
        return None
    return round(cycles / nanoseconds * 1000)
