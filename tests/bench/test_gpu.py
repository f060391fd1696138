"""The GPU's timer against a simulated GPU: what is timed, and what is void."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from membound.bench.gpu import GpuTiming
from membound.bench.sampling import Rule, TimerError, collect
from membound.kernels.spec import Launch
from membound.tests.bench.simulated_gpu import MICRO, SimulatedGpu, gpu_and_timing

# --- what is timed: each property holds for the timer, and fails for a twin that is wrong ---

Property = Callable[[type[GpuTiming], type[SimulatedGpu]], None]


def a_sample_is_what_the_device_takes(timing: type[GpuTiming], gpu: type[SimulatedGpu]) -> None:
    """Neither the launch's cost on the host nor the eviction before it (C31)."""
    machine, timer = gpu_and_timing(timing, gpu)
    sample = timer.cold(machine.kernel(3 * MICRO, missing=MICRO))
    assert [sample() for _ in range(3)] == pytest.approx([4 * MICRO] * 3)


def a_millisecond_is_a_millisecond(timing: type[GpuTiming], gpu: type[SimulatedGpu]) -> None:
    """Work that ends long after its launch returned (C28)."""
    machine, timer = gpu_and_timing(timing, gpu)
    assert timer.cold(machine.kernel(1e-3))() == pytest.approx(1e-3)


def steady_pays_the_debts_of_launches_before(
    timing: type[GpuTiming], gpu: type[SimulatedGpu]
) -> None:
    """Every timed launch finds the write-back of one before it, the first one too."""
    machine, timer = gpu_and_timing(timing, gpu)
    launches = [machine.kernel(200 * MICRO, f"set {i}", owes=50 * MICRO) for i in range(3)]
    sample = timer.steady(launches)
    machine.debt = 0.0
    assert sample() == pytest.approx(250 * MICRO)


def steady_is_per_launch(timing: type[GpuTiming], gpu: type[SimulatedGpu]) -> None:
    machine, timer = gpu_and_timing(timing, gpu)
    assert timer.steady([machine.kernel(MICRO)])() == pytest.approx(MICRO)


def a_graph_replays_what_events_time(timing: type[GpuTiming], gpu: type[SimulatedGpu]) -> None:
    machine, timer = gpu_and_timing(timing, gpu, graph=True)
    launches = [machine.kernel(5 * MICRO, f"set {i}", owes=MICRO) for i in range(3)]
    assert timer.timer == "graph"
    sample = timer.steady(launches)
    machine.debt = 0.0
    assert sample() == pytest.approx(6 * MICRO)


def a_gate_that_let_go_is_void(timing: type[GpuTiming], gpu: type[SimulatedGpu]) -> None:
    machine, timer = gpu_and_timing(timing, gpu)
    kernel = machine.kernel(MICRO)

    def synchronises() -> None:
        kernel()
        machine.synchronize()

    assert timer.cold(synchronises)() is None
    assert timer.cold(kernel)() == pytest.approx(MICRO)  # the next one is sound again


def an_allocation_inside_is_void(timing: type[GpuTiming], gpu: type[SimulatedGpu]) -> None:
    machine, timer = gpu_and_timing(timing, gpu)
    kernel, times = machine.kernel(MICRO), itertools.count()

    def allocates() -> None:
        kernel()
        machine.allocations += next(times) in (0, 2)  # when warmed up, and in the second sample

    sample = timer.cold(allocates)
    assert sample() == pytest.approx(MICRO)
    assert sample() is None
    assert sample() == pytest.approx(MICRO)


def nothing_is_compiled_inside(timing: type[GpuTiming], gpu: type[SimulatedGpu]) -> None:
    """A first call that takes long, or waits for the device, is no sample (C36)."""
    takes: list[Callable[[GpuTiming, Launch], Callable[[], float | None]]] = [
        lambda timer, launch: timer.cold(launch),
        lambda timer, launch: timer.steady([launch]),
    ]
    for take in takes:
        machine, timer = gpu_and_timing(timing, gpu)
        kernel, times = machine.kernel(3 * MICRO), itertools.count()

        def compiles(machine: Any = machine, kernel: Any = kernel, times: Any = times) -> None:
            if next(times) == 0:
                machine.enqueue(lambda: setattr(machine, "device", machine.device + 1.0))
                machine.synchronize()
            kernel()

        assert take(timer, compiles)() == pytest.approx(3 * MICRO)


PROPERTIES: list[Property] = [
    a_sample_is_what_the_device_takes,
    a_millisecond_is_a_millisecond,
    steady_pays_the_debts_of_launches_before,
    steady_is_per_launch,
    a_graph_replays_what_events_time,
    a_gate_that_let_go_is_void,
    an_allocation_inside_is_void,
    nothing_is_compiled_inside,
]


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda p: p.__name__)
def test_the_timer(holds: Property) -> None:
    holds(GpuTiming, SimulatedGpu)


class StartsBeforeTheLead(GpuTiming):
    def _gated(
        self, timed: Sequence[Launch], lead: Sequence[Launch] = (), per: int | None = None
    ) -> float | None:
        return super()._gated([*lead, *timed], (), per or len(timed))


class HasNoLead(GpuTiming):
    def _gated(
        self, timed: Sequence[Launch], lead: Sequence[Launch] = (), per: int | None = None
    ) -> float | None:
        return super()._gated(timed, (), per)


class TimesTheWhole(GpuTiming):
    def _gated(
        self, timed: Sequence[Launch], lead: Sequence[Launch] = (), per: int | None = None
    ) -> float | None:
        return super()._gated(timed, lead, 1)


class EvictsInside(GpuTiming):
    def cold(self, launch: Launch) -> Callable[[], float | None]:
        super().cold(launch)
        return lambda: self._gated([self._runtime.evict, launch], per=1)


class DoesNotEvict(GpuTiming):
    def cold(self, launch: Launch) -> Callable[[], float | None]:
        super().cold(launch)
        return lambda: self._gated([launch])


class DoesNotWarmUp(GpuTiming):
    def _warm(self, *launches: Launch) -> None:
        return


class HasNoGate(SimulatedGpu):
    def close_gate(self) -> None:
        return


class DoesNotWait(SimulatedGpu):
    """Reads the events as soon as they are enqueued."""

    def open_gate(self) -> bool:
        return True


class RecordsOnAnotherStream(SimulatedGpu):
    """Its events are passed at once, since nothing else is on their stream."""

    def start(self) -> None:
        self._start = self.host

    def stop(self) -> None:
        self._stop = self.host


class NeverSaysThatItLetGo(SimulatedGpu):
    def open_gate(self) -> bool:
        super().open_gate()
        return True


class CountsNoAllocations(SimulatedGpu):
    def driver_allocations(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("wrong", "fails"),
    [
        (StartsBeforeTheLead, steady_is_per_launch),
        (StartsBeforeTheLead, a_graph_replays_what_events_time),
        (HasNoLead, steady_pays_the_debts_of_launches_before),
        (HasNoLead, a_graph_replays_what_events_time),
        (TimesTheWhole, steady_is_per_launch),
        (TimesTheWhole, a_graph_replays_what_events_time),
        (EvictsInside, a_sample_is_what_the_device_takes),
        (DoesNotEvict, a_sample_is_what_the_device_takes),
        (DoesNotWarmUp, nothing_is_compiled_inside),
        (HasNoGate, steady_is_per_launch),
        (DoesNotWait, a_millisecond_is_a_millisecond),
        (RecordsOnAnotherStream, a_millisecond_is_a_millisecond),
        (NeverSaysThatItLetGo, a_gate_that_let_go_is_void),
        (CountsNoAllocations, an_allocation_inside_is_void),
    ],
    ids=lambda value: value.__name__,
)
def test_a_wrong_twin_is_rejected(wrong: type, fails: Property) -> None:
    timing = wrong if issubclass(wrong, GpuTiming) else GpuTiming
    gpu = wrong if issubclass(wrong, SimulatedGpu) else SimulatedGpu
    with pytest.raises((AssertionError, RuntimeError)):
        fails(timing, gpu)


# --- order ---


def test_a_cold_sample_is_evict_close_start_launch_stop_open() -> None:
    machine, timer = gpu_and_timing()
    sample = timer.cold(machine.kernel(MICRO))
    machine.log.clear()
    sample()
    assert machine.log == ["evict", "close", "open", "start", "kernel", "stop"]


def test_a_steady_sample_leads_with_every_set_and_goes_on_round() -> None:
    machine, timer = gpu_and_timing()
    sample = timer.steady([machine.kernel(60 * MICRO, f"set {i}") for i in range(3)])
    machine.log.clear()
    sample()
    assert "evict" not in machine.log
    lead, timed = machine.log[2:5], machine.log[6:-1]
    assert lead == ["set 0", "set 1", "set 2"]
    assert timed == ["set 0", "set 1"]  # at least 100 µs: 200 ticks of the events' clock
    assert (machine.log[5], machine.log[-1]) == ("start", "stop")


@pytest.mark.parametrize(("sets", "seconds"), [(1, 1e-9), (100, 1e-9), (3, 30e-6), (2, 1.0)])
def test_no_more_waits_behind_a_gate_than_the_launch_queue_holds(sets: int, seconds: float) -> None:
    machine, timer = gpu_and_timing()
    sample = timer.steady([machine.kernel(seconds)] * sets)
    machine.log.clear()
    sample()
    assert 2 <= machine.log.count("kernel") <= 128


def test_the_tick_is_shared_by_the_launches_of_a_sample() -> None:
    machine, timer = gpu_and_timing()
    timer.cold(machine.kernel(MICRO))
    once = timer.granularity
    timer.steady([machine.kernel(5 * MICRO)])
    assert timer.granularity == pytest.approx(once / 20)
    timer.steady([machine.kernel(1e-3)])
    assert timer.granularity == once
    timer.steady([machine.kernel(5 * MICRO)])
    timer.cold(machine.kernel(MICRO))
    assert timer.granularity == once


# --- void samples end ---


def test_a_gate_that_never_holds_ends_as_a_timer_error() -> None:
    machine, timer = gpu_and_timing()

    def synchronises() -> None:
        machine.enqueue(lambda: None)
        machine.synchronize()

    with pytest.raises(TimerError, match="not times"):
        collect(timer.cold(synchronises), Rule(), lambda: machine.host)


# --- launch overhead ---


def test_overhead_is_the_hosts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, timer = gpu_and_timing()
    monkeypatch.setattr(
        "membound.bench.gpu.time.perf_counter_ns", lambda: round(machine.host * 1e9)
    )
    assert timer.launch_overhead(machine.kernel(1.0)) == pytest.approx(machine.enqueue_seconds)


def test_overhead_of_what_synchronises_is_unknown() -> None:
    machine, timer = gpu_and_timing()

    def synchronises() -> None:
        machine.enqueue(lambda: None)
        machine.synchronize()

    assert timer.launch_overhead(synchronises) is None


# --- eviction ---


@pytest.mark.parametrize(("enough", "multiple"), [(1, 2), (2, 2), (3, 4), (4, 4), (8, 8), (99, 2)])
def test_the_evictor_is_doubled_until_it_empties(enough: int, multiple: int) -> None:
    """99: nothing tells the cache from memory, so that a larger evictor would show nothing."""
    machine = SimulatedGpu(enough)
    assert GpuTiming(machine, default_mhz=None).eviction_multiple == multiple
    assert machine.multiple == multiple


def test_eviction_is_proven_in_spite_of_gates_that_let_go() -> None:
    class LetsGo(SimulatedGpu):
        def open_gate(self) -> bool:
            return super().open_gate() and self.log.count("close") % 3 != 0

    assert GpuTiming(LetsGo(4), default_mhz=None).eviction_multiple == 4
