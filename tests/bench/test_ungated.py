"""Timers without a gate against a simulated GPU: events, and the driver's activity records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from membound.bench import cupti
from membound.bench.cupti import Activity, CuptiTiming, between_stamps, span
from membound.bench.gpu import UngatedTiming
from membound.bench.sampling import Rule, TimerError, collect
from membound.bench.start import gpu_timing
from membound.kernels.spec import Launch
from membound.results.record import Timer
from membound.tests.bench.simulated_gpu import SimulatedGpu, Work

MICRO = 1e-6


class Traced(SimulatedGpu):
    """Keeps an activity of everything that it runs; its stamps take a while."""

    stamp_seconds = 2 * MICRO
    jitter_seconds = 64e-9

    def __init__(self, enough: int = 2) -> None:
        super().__init__(enough)
        self.activities: list[Activity] = []
        self._longer = itertools.cycle([0, 1, 2])

    def activity(self, name: str, start: float, end: float) -> None:
        self.activities.append(Activity(name, 1000 + round(start * 1e9), 1000 + round(end * 1e9)))

    def _run(self, work: Work) -> None:
        begin, seen = max(self.device, self.host), len(self.log)
        super()._run(work)
        for name in self.log[seen:]:
            if name in ("start", "stop"):
                self.device += self.stamp_seconds + next(self._longer) * self.jitter_seconds
                name = "stamp"
            self.activity(name, begin, self.device)

    def drain(self) -> list[Activity]:
        done, self.activities = self.activities, []
        return done


def cupti_timing(
    kind: type[CuptiTiming] = CuptiTiming, gpu: type[Traced] = Traced
) -> tuple[Traced, CuptiTiming]:
    machine = gpu()
    return machine, kind(machine, machine, default_mhz=None)


def several(machine: SimulatedGpu, *kernels: Launch) -> Launch:
    """A launch of several kernels, which the host is slow to enqueue."""

    def launch() -> None:
        for kernel in kernels:
            kernel()

    return launch


# --- what a sample is; each property fails for a twin that is wrong ---

Property = Callable[[type[CuptiTiming], type[Traced]], None]


def a_cold_sample_is_the_kernel_alone(kind: type[CuptiTiming], gpu: type[Traced]) -> None:
    machine, timer = cupti_timing(kind, gpu)
    sample = timer.cold(machine.kernel(3 * MICRO, missing=MICRO))
    assert [sample() for _ in range(3)] == pytest.approx([4 * MICRO] * 3)


def several_kernels_are_their_span(kind: type[CuptiTiming], gpu: type[Traced]) -> None:
    """Not their sum: the host takes 5 µs to enqueue each, long after the eviction has ended."""
    machine, timer = cupti_timing(kind, gpu)
    machine.evict_seconds = 0.0
    first, second = machine.kernel(MICRO, "first"), machine.kernel(2 * MICRO, "second")
    assert timer.cold(several(machine, first, second))() == pytest.approx(7 * MICRO)


def kernels_that_overlap_are_not_counted_twice(kind: type[CuptiTiming], gpu: type[Traced]) -> None:
    machine, timer = cupti_timing(kind, gpu)
    kernel = machine.kernel(10 * MICRO, "long")

    def inside() -> None:
        machine.activity("short", machine.device - 5 * MICRO, machine.device - MICRO)

    assert timer.cold(several(machine, kernel, lambda: machine.enqueue(inside)))() == pytest.approx(
        10 * MICRO
    )


def steady_is_per_launch(kind: type[CuptiTiming], gpu: type[Traced]) -> None:
    machine, timer = cupti_timing(kind, gpu)
    launches = [machine.kernel(50 * MICRO, f"set {i}", owes=10 * MICRO) for i in range(3)]
    sample = timer.steady(launches)
    machine.debt = 0.0
    assert sample() == pytest.approx(60 * MICRO)


def a_missing_record_is_void(kind: type[CuptiTiming], gpu: type[Traced]) -> None:
    machine, timer = cupti_timing(kind, gpu)
    kernels = machine.kernel(MICRO, "first"), machine.kernel(2 * MICRO, "second")
    sample = timer.cold(several(machine, *kernels))
    whole = machine.drain

    def without(name: str) -> None:
        machine.drain = lambda: [a for a in whole() if a.name != name]  # type: ignore[method-assign]

    for name in ("first", "second", "stamp"):
        without(name)
        assert sample() is None, name
    without("nothing")
    assert sample() is not None


def records_that_come_late_are_not_the_next_samples(
    kind: type[CuptiTiming], gpu: type[Traced]
) -> None:
    machine, timer = cupti_timing(kind, gpu)
    sample = timer.cold(machine.kernel(3 * MICRO))
    machine.activity("late", 1.0, 2.0)
    machine.activity("stamp", 1.0, 2.0)
    assert sample() == pytest.approx(3 * MICRO)


PROPERTIES: list[Property] = [
    a_cold_sample_is_the_kernel_alone,
    several_kernels_are_their_span,
    kernels_that_overlap_are_not_counted_twice,
    steady_is_per_launch,
    a_missing_record_is_void,
    records_that_come_late_are_not_the_next_samples,
]


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda p: p.__name__)
def test_activity_records(holds: Property) -> None:
    holds(CuptiTiming, Traced)


class SumsUp(CuptiTiming):
    def _elapsed(self, launches: int) -> float | None:
        found = between_stamps(self._source.drain())
        return sum(activity.end - activity.start for activity in found) * 1e-9


class TakesEveryRecord(CuptiTiming):
    def _elapsed(self, launches: int) -> float | None:
        found = self._source.drain()
        return span(found, len(found))


class CountsNothing(CuptiTiming):
    def _elapsed(self, launches: int) -> float | None:
        found = between_stamps(self._source.drain())
        return span(found, len(found))


class KeepsOldRecords(CuptiTiming):
    def _hold(self) -> None:
        self._runtime.clear()


class ReadsEvents(CuptiTiming):
    def _elapsed(self, launches: int) -> float | None:
        return self._runtime.elapsed_seconds()


@pytest.mark.parametrize(
    ("wrong", "fails"),
    [
        (SumsUp, several_kernels_are_their_span),
        (SumsUp, kernels_that_overlap_are_not_counted_twice),
        (TakesEveryRecord, a_cold_sample_is_the_kernel_alone),
        (TakesEveryRecord, steady_is_per_launch),
        (CountsNothing, a_missing_record_is_void),
        (KeepsOldRecords, records_that_come_late_are_not_the_next_samples),
        (ReadsEvents, a_cold_sample_is_the_kernel_alone),
    ],
    ids=lambda value: value.__name__,
)
def test_a_wrong_twin_is_rejected(wrong: type[CuptiTiming], fails: Property) -> None:
    with pytest.raises(AssertionError):
        fails(wrong, Traced)


# --- records ---


def activities(*parts: tuple[str, int, int]) -> list[Activity]:
    return [Activity(*part) for part in parts]


def test_only_what_lies_between_two_stamps_is_under_test() -> None:
    stamp, other = ("stamp", 10, 12), ("stamp", 30, 32)
    evict, kernel = ("evict", 1, 9), ("kernel", 13, 20)
    assert between_stamps(activities(other, kernel, evict, stamp)) == activities(kernel)
    assert not between_stamps(activities(evict, stamp, kernel))
    assert not between_stamps(activities(stamp, kernel, other, ("stamp", 40, 42)))
    assert not between_stamps([])


@pytest.mark.parametrize(
    ("found", "expected", "seconds"),
    [
        ([("a", 10, 20), ("b", 15, 40)], 2, 30e-9),
        ([("a", 10, 50), ("b", 15, 40)], 2, 40e-9),
        ([("a", 10, 20)], 2, None),
        ([("a", 10, 20), ("b", 30, 40)], 1, None),
        ([("a", 10, 20), ("b", 0, 0)], 2, None),  # a record that was not completed
        ([("a", 10, 20), ("b", 30, 0)], 2, None),
        ([], 0, None),
    ],
)
def test_a_span_needs_every_record(
    found: list[tuple[str, int, int]], expected: int, seconds: float | None
) -> None:
    taken = span(activities(*found), expected)
    assert taken is None if seconds is None else taken == pytest.approx(seconds)


def test_a_launch_without_records_ends_as_a_timer_error() -> None:
    machine, timer = cupti_timing()
    with pytest.raises(TimerError, match="not times"):
        collect(timer.cold(lambda: None), Rule(), lambda: machine.host)


def test_a_record_lost_while_warming_up_voids_nothing_later() -> None:
    machine, timer = cupti_timing()
    whole, asked = machine.drain, itertools.count()

    def drain() -> list[Activity]:
        found = whole()
        return found if next(asked) else [a for a in found if a.name != "second"]

    machine.drain = drain  # type: ignore[method-assign]
    kernels = machine.kernel(MICRO, "first"), machine.kernel(2 * MICRO, "second")
    assert timer.cold(several(machine, *kernels))() is not None


@pytest.mark.parametrize(
    ("jitter", "tick"), [(1e-9, 32e-9), (64e-9, 64e-9), (1.024e-6, 1.024e-6), (0.0, 1e-6)]
)
def test_the_step_of_records_is_measured(jitter: float, tick: float) -> None:
    class Stepping(Traced):
        jitter_seconds = jitter

    machine, timer = cupti_timing(gpu=Stepping)
    assert timer.granularity == pytest.approx(tick)
    timer.steady([machine.kernel(tick)])
    assert timer.granularity < tick / 10


# --- no gate ---


@pytest.fixture(params=["cupti", "events-ungated"])
def ungated(request: pytest.FixtureRequest) -> Iterator[tuple[Traced, UngatedTiming]]:
    machine = Traced()
    if request.param == "cupti":
        yield machine, CuptiTiming(machine, machine, default_mhz=2000)
    else:
        yield machine, UngatedTiming(machine, default_mhz=2000)


def test_no_gate_is_ever_closed(ungated: tuple[Traced, UngatedTiming]) -> None:
    machine, timer = ungated
    kernel = machine.kernel(3 * MICRO)
    timer.cold(kernel)()
    timer.steady([kernel, kernel])()
    timer.launch_overhead(kernel)
    assert not {"close", "open"} & set(machine.log)


def test_what_synchronises_in_a_launch_is_timed(ungated: tuple[Traced, UngatedTiming]) -> None:
    """Behind a gate it would stall until the gate lets go, as in a profiler."""
    machine, timer = ungated
    kernel = machine.kernel(3 * MICRO)

    def synchronises() -> None:
        kernel()
        machine.synchronize()

    assert timer.cold(synchronises)() is not None
    assert timer.launch_overhead(synchronises) is not None


def test_an_allocation_inside_is_void(ungated: tuple[Traced, UngatedTiming]) -> None:
    machine, timer = ungated
    kernel = machine.kernel(3 * MICRO)

    def allocates() -> None:
        kernel()
        machine.allocations += 1

    assert timer.cold(allocates)() is None


def test_events_without_a_gate_hold_the_gaps_between_kernels() -> None:
    machine = SimulatedGpu()
    timer = UngatedTiming(machine, default_mhz=None)
    assert timer.timer == "events-ungated"
    assert timer.cold(machine.kernel(3 * MICRO))() == pytest.approx(3 * MICRO)  # evict hides it
    machine.evict_seconds = 0.0
    late = 2 * machine.enqueue_seconds  # the launch, then the event that ends the interval
    assert timer.cold(machine.kernel(3 * MICRO))() == pytest.approx(late)


@pytest.mark.parametrize("timer", ["events", "events-ungated", "graph", "cupti"])
def test_the_timer_asked_for_is_the_one_that_is_made(
    timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Traced()
    monkeypatch.setattr(cupti, "CuptiSource", lambda: machine)
    assert gpu_timing(machine, timer, None).timer == timer


def test_a_source_that_cannot_be_had_is_no_other_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    monkeypatch.setattr(cupti, "CuptiSource", refused)
    with pytest.raises(RuntimeError, match="PRIVILEGES"):
        gpu_timing(Traced(), "cupti", None)
