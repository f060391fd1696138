"""Stopping, with scripted samples and clocks: every path, no machine speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, cycle, repeat

import pytest
from membound.bench.sampling import Rule, TimerError, collect, median_interval


class Clock:
    """Advances by `step` at every look."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def scripted(values: Iterable[float | None]) -> Callable[[], float | None]:
    iterator: Iterator[float | None] = iter(values)
    return lambda: next(iterator)


def test_equal_samples_stop_at_the_fewest_that_have_an_interval() -> None:
    samples = collect(scripted(repeat(1e-3)), Rule(min_samples=10), Clock(0.0))
    assert samples.stop == "interval"
    assert samples.seconds == [1e-3] * 10


def test_noise_runs_to_the_most_samples_or_out_of_time() -> None:
    noisy = cycle([1e-3, 2e-3, 3e-3])
    assert collect(scripted(noisy), Rule(max_samples=40), Clock(0.0)).stop == "samples"
    timed = collect(scripted(noisy), Rule(seconds=1.0), Clock(0.05))
    assert timed.stop == "time"
    assert len(timed.seconds) < 40


def test_few_slow_samples_end_at_ten_times_the_limit() -> None:
    samples = collect(scripted(repeat(4.0)), Rule(seconds=1.0), Clock(4.0))
    assert samples.stop == "time"
    assert len(samples.seconds) == 3


def test_a_clock_that_goes_back_ends_it() -> None:
    samples = collect(scripted(cycle([1e-3, 2e-3])), Rule(), Clock(-1.0))
    assert samples.stop == "time"


def test_a_quantised_median_is_no_interval_of_zero_width() -> None:
    rule = Rule(target=0.005, granularity=0.5e-6, max_samples=30)
    assert collect(scripted(repeat(10e-6)), rule, Clock(0.0)).stop == "samples"
    assert collect(scripted(repeat(100e-6)), rule, Clock(0.0)).stop == "interval"


@pytest.mark.parametrize("bad", [0.0, -1e-3, float("nan"), float("inf"), 1e9, None])
def test_values_that_are_not_times_end_in_bounded_work(bad: float | None) -> None:
    with pytest.raises(TimerError, match="21 samples are not times"):
        collect(scripted(repeat(bad)), Rule(), Clock(0.0))


def test_void_samples_are_left_out_and_counted() -> None:
    values = chain([None, 1e-3, None], repeat(1e-3))
    samples = collect(scripted(values), Rule(), Clock(0.0))
    assert samples.voided == 2
    assert set(samples.seconds) == {1e-3}


def test_outliers_stay() -> None:
    samples = collect(scripted(chain([1.0], repeat(1e-3))), Rule(), Clock(0.0))
    assert max(samples.seconds) == 1.0


@pytest.mark.parametrize(
    ("n", "ranks"), [(5, None), (6, (1, 6)), (10, (2, 9)), (20, (6, 15)), (100, (40, 61))]
)
def test_interval_of_the_median_by_order_statistics(n: int, ranks: tuple[int, int] | None) -> None:
    """Ranks as tabulated for 95 % (Conover, Practical Nonparametric Statistics, binomial)."""
    interval = median_interval([float(value) for value in range(1, n + 1)])
    assert interval == (None if ranks is None else tuple(map(float, ranks)))
