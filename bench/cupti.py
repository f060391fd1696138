"""The timer `cupti`: how long kernels ran, by the driver's own records of them (CUPTI activities).

A sample is the span from the start of the first kernel, copy or fill under test to the end of the
last one, gaps between them included. The records of other kernels are told by their order: what is
under test lies between the two stamps.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from ..kernels.spec import Launch
from ..results.record import Timer
from .gpu import Runtime, UngatedTiming

FINEST_STEP_SECONDS = 32e-9
"""The GPU's nanosecond timer counts in steps of 32 ns at best, 1 µs at worst (NVIDIA's developer
forum, thread 323887). Records are converted to the host's clock, so that theirs look finer."""
COARSEST_STEP_SECONDS = 1e-6

_STAMP = "stamp"  # its name in gate.cu
_STEPS = 32
_COUNTS = 3
_BUFFER_BYTES = 8 << 20


class Activity(NamedTuple):
    """What ran on the device, between two times in nanoseconds."""

    name: str
    start: int
    end: int


class Source(Protocol):
    """What `CuptiSource` gives; a stand-in in the tests."""

    def drain(self) -> list[Activity]:
        """What ended since it was last asked; the stream must have been waited for."""


class CuptiTiming(UngatedTiming):
    """Samples by activity records.

    There is no gate: a profiler may synchronise in a launch, behind a gate that only the host
    could open (nvbench#136, #240, #45).
    """

    timer: Timer = "cupti"

    def __init__(self, runtime: Runtime, source: Source, *, default_mhz: int | None) -> None:
        self._source = source
        self._each = 1  # records of one launch; the eviction's proof launches one kernel
        self._tick_seconds = _step(self._stamps(runtime))
        super().__init__(runtime, default_mhz=default_mhz)

    def _begin(self, *launches: Launch) -> None:
        super()._begin(*launches)
        self._each = max(len(self._recorded(launches[0])) for _ in range(_COUNTS))

    def _recorded(self, launch: Launch) -> Sequence[Activity]:
        self._hold()
        self._runtime.start()
        launch()
        self._runtime.stop()
        self._release()
        return between_stamps(self._source.drain())

    def _hold(self) -> None:
        super()._hold()
        self._source.drain()

    def _elapsed(self, launches: int) -> float | None:
        return span(between_stamps(self._source.drain()), launches * self._each)

    def _stamps(self, runtime: Runtime) -> list[Activity]:
        self._source.drain()
        for _ in range(_STEPS):
            runtime.start()
            runtime.stop()
        runtime.synchronize()
        return [activity for activity in self._source.drain() if activity.name == _STAMP]


def between_stamps(activities: Iterable[Activity]) -> Sequence[Activity]:
    """In the order they started; none where there are not exactly two stamps."""
    ordered = sorted(activities, key=lambda activity: (activity.start, activity.end))
    stamps = [i for i, activity in enumerate(ordered) if activity.name == _STAMP]
    if len(stamps) != 2:
        return []
    return ordered[stamps[0] + 1 : stamps[1]]


def span(activities: Sequence[Activity], expected: int) -> float | None:
    """Seconds from the first start to the last end; None unless `expected` whole records are there.

    Kernels may overlap, so that their sum would be another time.
    """
    whole = [activity for activity in activities if 0 < activity.start < activity.end]
    if not whole or not len(whole) == len(activities) == expected:
        return None
    return (max(a.end for a in whole) - min(a.start for a in whole)) * 1e-9


def _step(activities: Iterable[Activity]) -> float:
    """The smallest difference between times that the same tiny kernel took, in seconds."""
    took = sorted({activity.end - activity.start for activity in activities})
    steps = [b - a for a, b in itertools.pairwise(took)]
    return max(FINEST_STEP_SECONDS, min(steps) * 1e-9) if steps else COARSEST_STEP_SECONDS


class CuptiSource:
    """CUPTI's records of kernels, copies and fills in this process, from now on.

    Raises what cupti-python raises where it may not or cannot record.
    """

    def __init__(self) -> None:
        from cupti import cupti

        self._cupti = cupti
        self._done: list[Activity] = []
        kinds = cupti.ActivityKind
        cupti.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), self._completed)
        for kind in (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET):
            cupti.activity_enable(kind)

    def drain(self) -> list[Activity]:
        self._cupti.activity_flush_all(0)
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        kinds = self._cupti.ActivityKind
        for kind in (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET):
            self._cupti.activity_disable(kind)

    def _completed(self, activities: Sequence[object]) -> None:
        # The records' memory is CUPTI's again once this returns.
        self._done += [
            Activity(getattr(a, "name", ""), getattr(a, "start", 0), getattr(a, "end", 0))
            for a in activities
        ]


def unavailable() -> str | None:
    """Why there can be no activity records here, in one line; None where there can."""
    if importlib.util.find_spec("cupti") is None:
        return "it needs cupti-python (pip install 'membound[cupti]')"
    try:
        CuptiSource().close()
    except Exception as error:
        return f"CUPTI refuses: {str(error).strip().partition(chr(10))[0] or type(error).__name__}"
    return None
