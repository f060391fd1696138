"""The clock a simulated GPU ran at: known, unknown, and too low."""

from __future__ import annotations

import pytest
from membound.bench.sampling import Rule, collect
from membound.tests.bench.simulated_gpu import MICRO, SimulatedGpu, gpu_and_timing


class Paced(SimulatedGpu):
    """Says what `paces` holds, in MHz, one sample after the other; then the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.paces = [2000]

    def cycles_and_nanoseconds(self) -> tuple[int, int]:
        pace = self.paces.pop(0) if len(self.paces) > 1 else self.paces[0]
        return pace * 1000, 1_000_000


def test_the_clock_is_cycles_by_nanoseconds() -> None:
    machine, timer = gpu_and_timing()
    timer.cold(machine.kernel(1e-3))()
    assert timer.clock_mhz() == 2000


@pytest.mark.parametrize(
    ("stamps", "mhz"),
    [
        ((0, 0), None),
        ((0, 1_000_000), None),
        ((-5, 1_000_000), None),
        ((398_000, 199_000), None),  # under 200 ticks of globaltimer
        ((400_000, 200_000), 2000),
    ],
)
def test_a_missing_stamp_or_a_short_window_has_no_clock(
    stamps: tuple[int, int], mhz: int | None
) -> None:
    class Stamped(SimulatedGpu):
        def cycles_and_nanoseconds(self) -> tuple[int, int]:
            return stamps

    machine, timer = gpu_and_timing(gpu=Stamped, default_mhz=2000)
    assert timer.cold(machine.kernel(MICRO))() == pytest.approx(MICRO)  # timed all the same
    assert timer.clock_mhz() == mhz


def test_a_clock_is_not_left_over_from_another_sample() -> None:
    machine, timer = gpu_and_timing()
    timer.cold(machine.kernel(1e-3))()
    timer.cold(machine.kernel(MICRO))()
    assert timer.clock_mhz() is None


def test_throttled_samples_are_tried_again_ten_times_then_kept() -> None:
    machine, timer = gpu_and_timing(gpu=Paced, default_mhz=2000)
    assert isinstance(machine, Paced)
    machine.paces = [1000]
    samples = collect(timer.cold(machine.kernel(MICRO)), Rule(), lambda: 0.0)
    assert samples.voided == 10
    assert len(samples.seconds) == 10
    assert timer.clock_mhz() == 1000
    assert timer.throttled([1000] * 10) is True


def test_a_short_dip_is_measured_again() -> None:
    machine, timer = gpu_and_timing(gpu=Paced, default_mhz=2000)
    assert isinstance(machine, Paced)
    sample = timer.cold(machine.kernel(MICRO))
    machine.paces = [1000, 1000, 1990]
    assert [sample() is None for _ in range(4)] == [True, True, False, False]
    assert timer.clock_mhz() == 1990


def test_retries_are_per_case() -> None:
    machine, timer = gpu_and_timing(gpu=Paced, default_mhz=2000)
    assert isinstance(machine, Paced)
    machine.paces = [1000]
    for _ in range(2):
        sample = timer.cold(machine.kernel(MICRO))
        assert [sample() for _ in range(11)].count(None) == 10


@pytest.mark.parametrize(
    ("default", "clocks", "throttled"),
    [
        (None, [500], None),
        (2000, [], None),
        (2000, [1500, 1500], False),  # three quarters are enough
        (2000, [1499, 1499, 2000], True),
        (2000, [1000, 2000, 2000], False),
    ],
)
def test_throttled_is_under_three_quarters_of_a_known_clock(
    default: int | None, clocks: list[int], throttled: bool | None
) -> None:
    _, timer = gpu_and_timing(default_mhz=default)
    assert timer.throttled(clocks) is throttled


def test_an_unknown_default_clock_voids_nothing() -> None:
    machine, timer = gpu_and_timing(gpu=Paced)
    assert isinstance(machine, Paced)
    machine.paces = [1]
    sample = timer.cold(machine.kernel(MICRO))
    assert None not in [sample() for _ in range(20)]
