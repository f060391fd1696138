"""Intervals and tests: literal values, agreement with scipy, and what must never matter."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.analysis.judge import Pair, judged
from membound.analysis.statistics import centre, holm, paired, sample_interval, usable, welch
from scipy import stats

TIMES = st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=8)
PROCESSES = st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=8)
QUICK = settings(max_examples=200, deadline=None)


@pytest.mark.parametrize(
    ("count", "ranks"), [(6, (1, 6)), (9, (2, 8)), (10, (2, 9)), (20, (6, 15)), (100, (40, 61))]
)
def test_order_statistics_that_hold_a_median(count: int, ranks: tuple[int, int]) -> None:
    assert sample_interval(list(range(1, count + 1))) == ranks


@pytest.mark.parametrize("samples", [[], [1.0], [1.0, 1.0], [0.0, 0.0], [1.0] * 5])
def test_few_samples_have_no_interval(samples: list[float]) -> None:
    assert sample_interval(samples) is None


def test_interval_of_three_process_medians() -> None:
    # sd of logs is ln 1.1; half width ln 1.1 / sqrt 3 x 4.3027 = 0.23677
    found = centre([1.0, 1.1, 1.21])
    assert found.value == 1.1
    assert found.low == pytest.approx(0.86809, rel=1e-4)
    assert found.high == pytest.approx(1.39386, rel=1e-4)
    assert found.spread == pytest.approx(math.log(1.1))


def test_fewer_than_three_processes_have_none() -> None:
    assert (centre([1.0]).low, centre([1.0]).spread) == (None, None)
    assert centre([1.0, 1.1]).low is None
    assert centre([1.0, 1.1]).spread == pytest.approx(math.log(1.1) / math.sqrt(2))


def test_equal_medians_are_as_sure_as_the_timer() -> None:
    found = centre([1e-5] * 3, tick=5e-7)
    assert found.low is not None
    assert found.low < 1e-5 * 0.97
    difference = welch([1e-5] * 3, [1e-5] * 3, tick=5e-7)
    assert difference is not None
    assert difference.half_width(0.95) > 0.01


def test_welch_is_that_of_scipy_on_logarithms() -> None:
    base, current = [1.0, 1.02, 1.01, 1.05], [1.1, 1.2, 1.12]
    found = welch(base, current)
    assert found is not None
    logs = [math.log(x) for x in current], [math.log(x) for x in base]
    scipy = stats.ttest_ind(*logs, equal_var=False)
    low, high = scipy.confidence_interval(0.95)
    half = found.half_width(0.95)
    assert found.estimate - half == pytest.approx(low, abs=1e-9)
    assert found.estimate + half == pytest.approx(high, abs=1e-9)
    assert found.p_beyond(0.0) == pytest.approx(scipy.pvalue, rel=1e-6)


def test_one_process_on_a_side_is_unknown() -> None:
    assert welch([1.0], [1.0, 2.0]) is None
    assert welch([1.0, 2.0], [1.0]) is None


@pytest.mark.parametrize(
    "bad", [[], [float("nan")], [float("inf")], [0.0], [-1.0], [None], [1.0, float("nan")]]
)
def test_what_is_no_time_is_refused(bad: list[float]) -> None:
    assert not usable(bad)
    for call in (
        lambda: welch(bad, [1.0, 2.0]),
        lambda: welch([1.0, 2.0], bad),
        lambda: centre(bad),
    ):
        with pytest.raises(ValueError, match="above zero"):
            call()


def test_holm_steps_down_and_stops() -> None:
    assert holm([]) == []
    assert holm([0.01, 0.04, 0.001]) == pytest.approx([0.05 / 2, 0.05, 0.05 / 3])
    # 0.03 > 0.05 / 2 is kept, and with it everything after, at its level.
    assert holm([0.04, 0.03, 0.001]) == pytest.approx([0.05 / 2, 0.05 / 2, 0.05 / 3])


def test_pairs_cancel_what_a_process_has_in_common() -> None:
    found = paired([2.0, 4.0, 8.0], [1.0, 2.0, 4.0])
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)


@QUICK
@given(PROCESSES, PROCESSES, st.sampled_from([2.0, 1 / 1024, 4096.0]))
def test_scaling_both_sides_changes_nothing(
    base: list[float], current: list[float], factor: float
) -> None:
    (one,) = judged([Pair("c", base, current)])
    (two,) = judged(
        [Pair("c", [x * factor for x in base], [x * factor for x in current], 1e-9 * factor)]
    )
    assert two.verdict == one.verdict
    assert two.ratio == pytest.approx(one.ratio)
    assert two.low == pytest.approx(one.low, rel=1e-6)
    assert two.high == pytest.approx(one.high, rel=1e-6)


@QUICK
@given(PROCESSES, PROCESSES, st.randoms())
def test_the_order_of_processes_changes_nothing(
    base: list[float], current: list[float], random: object
) -> None:
    (one,) = judged([Pair("c", base, current)])
    (two,) = judged([Pair("c", sorted(base), sorted(current, reverse=True))])
    assert two.verdict == one.verdict
    assert two.low == pytest.approx(one.low, rel=1e-9)


@QUICK
@given(PROCESSES, PROCESSES, st.floats(1.0, 5.0))
def test_more_noise_never_turns_ambiguous_into_a_verdict(
    base: list[float], current: list[float], factor: float
) -> None:
    def noisier(times: list[float]) -> list[float]:
        middle = fmean(map(math.log, times))
        return [math.exp(middle + factor * (math.log(x) - middle)) for x in times]

    (one,) = judged([Pair("c", base, current, tick=1e-15)])
    (two,) = judged([Pair("c", noisier(base), noisier(current), tick=1e-15)])
    if one.verdict == "ambiguous":
        assert two.verdict == "ambiguous"
