"""Sequential verdicts: what may not change them, and how often they are wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.analysis.compare import Comparison
from membound.analysis.judge import DECIDED, Compared
from membound.analysis.sequential import (
    Sequential,
    Sides,
    hodges_lehmann,
    looks,
    spending,
)

SPREAD = 0.044
"""Standard deviation of the logarithm of a ratio between two live processes that alternate."""

logs = st.floats(-0.3, 0.3, allow_subnormal=False)
restarts = st.lists(st.tuples(logs, logs), min_size=5, max_size=5)
families = st.lists(restarts, min_size=1, max_size=4)


def family(values: Sequence[Sequence[tuple[float, float]]], scale: float = 1.0) -> dict[str, Sides]:
    return {
        str(number): Sides(
            [scale * math.exp(a) for a, _ in case], [scale * math.exp(b) for _, b in case]
        )
        for number, case in enumerate(values)
    }


def verdicts(rows: Sequence[Compared]) -> list[str]:
    return [row.verdict for row in rows]


def judged(sides: dict[str, Sides], **options: float) -> list[Compared]:
    return Sequential(**options).judge(sides)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=60)
@given(families, st.floats(1e-6, 1e3))
def test_scaling_both_sides_changes_nothing(
    values: list[list[tuple[float, float]]], scale: float
) -> None:
    for one, other in zip(judged(family(values)), judged(family(values, scale)), strict=True):
        assert one.low is not None
        assert one.high is not None
        assert (other.low, other.high) == pytest.approx((one.low, one.high), rel=1e-6)
        assert other.ratio == pytest.approx(one.ratio, rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(families, st.randoms(use_true_random=False))
def test_the_order_of_restarts_changes_nothing(
    values: list[list[tuple[float, float]]], order: random.Random
) -> None:
    shuffled = [order.sample(case, len(case)) for case in values]
    for one, other in zip(judged(family(values)), judged(family(shuffled)), strict=True):
        assert (other.low, other.high) == pytest.approx((one.low, one.high), rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(families)
def test_exchanging_the_sides_exchanges_slower_and_faster(
    values: list[list[tuple[float, float]]],
) -> None:
    exchanged = family([[(b, a) for a, b in case] for case in values])
    mirrored = {"slower": "faster", "faster": "slower"}
    forward, backward = judged(family(values)), judged(exchanged)
    assert verdicts(backward) == [mirrored.get(v, v) for v in verdicts(forward)]


@settings(deadline=None, max_examples=60)
@given(families, st.integers(0, 3), st.floats(1, 50))
def test_more_noise_never_turns_ambiguous_into_a_verdict(
    values: list[list[tuple[float, float]]], which: int, factor: float
) -> None:
    """Noisier is: every log-ratio of one case `factor` times as far from their mean. What is
    monotone is that case: decided in the noisier data, it was decided alike in the quieter."""
    case = which % len(values)
    differences = [b - a for a, b in values[case]]
    mean = math.fsum(differences) / len(differences)
    noisier = [(0.0, mean + factor * (d - mean)) for d in differences]
    quiet = judged(family(values))[case].verdict
    loud = judged(family([*values[:case], noisier, *values[case + 1 :]]))[case].verdict
    assert loud in ("ambiguous", quiet)


def test_alpha_is_spent_once() -> None:
    assert looks(5) == (5, 8, 12, 16, 20)
    assert spending(0) == 0
    assert spending(1) == pytest.approx(0.05)
    assert spending(1.5) == pytest.approx(0.05)
    judge = Sequential()
    levels = [judge._level(count, last=False) for count in looks(5)]
    assert min(levels) > 0
    assert sum(levels) == pytest.approx(0.05)
    early = Sequential()
    assert early._level(5, False) + early._level(9, True) == pytest.approx(0.05)


def simulated(
    seed: int, cases: int, change: float, judge: Sequential, looking: Sequence[int]
) -> list[Compared]:
    """The verdicts at the last of the looks on times that truly differ by `change`."""
    random_ = random.Random(seed)
    truth = math.log1p(change)
    base = [[1.0] * looking[-1] for _ in range(cases)]
    current = [[math.exp(random_.gauss(truth, SPREAD)) for _ in range(looking[-1])] for _ in base]
    rows: list[Compared] = []
    for look in looking:
        sides = {str(n): Sides(base[n][:look], current[n][:look]) for n in range(cases)}
        rows = judge.judge(sides, last=look == looking[-1])
    return rows


def shares(runs: int, cases: int, change: float, **options: float) -> dict[str, float]:
    rows = [
        row.verdict
        for seed in range(runs)
        for row in simulated(seed, cases, change, Sequential(**options), looks(5))  # type: ignore[arg-type]
    ]
    return {name: rows.count(name) / len(rows) for name in (*DECIDED, "ambiguous")}


def any_decided_wrong(seeds: range, make: Sequential, looking: Sequence[int]) -> Iterator[bool]:
    for seed in seeds:
        judge = Sequential(make.first, make.threshold, make.alpha)
        rows = simulated(seed, 4, 0.0, judge, looking)
        yield any(row.verdict in ("slower", "faster") for row in rows)


def test_identical_code_is_called_changed_no_oftener_than_alpha_per_family() -> None:
    """With no threshold to hide behind, and over all looks."""
    wrong = list(any_decided_wrong(range(600), Sequential(threshold=1e-12), looks(5)))
    assert sum(wrong) / len(wrong) <= 0.05


def test_looking_after_every_restart_at_full_alpha_would_not_keep_it() -> None:
    class Impatient(Sequential):
        def _level(self, restarts: int, last: bool) -> float:
            return self.alpha

    wrong = []
    for seed in range(200):
        rows = simulated(seed, 4, 0.0, Impatient(threshold=1e-12), range(5, 21))
        wrong.append(any(row.verdict in ("slower", "faster") for row in rows))
    assert sum(wrong) / len(wrong) > 0.1


def test_at_the_threshold_itself_alpha_is_kept_and_below_it_far_more() -> None:
    at_threshold = shares(60, 10, 0.03)
    assert at_threshold["slower"] <= 0.05
    assert at_threshold["faster"] == 0
    identical = shares(60, 10, 0.0)
    assert identical["slower"] <= 0.005
    assert identical["faster"] <= 0.005


def test_a_true_tenth_is_found_and_never_called_same() -> None:
    found = shares(40, 10, 0.10)
    assert found["slower"] >= 0.95
    assert found["same"] == found["faster"] == 0


def test_what_is_decided_stays() -> None:
    judge = Sequential()
    clear = Sides([1.0] * 5, [1.2, 1.2001, 1.1999, 1.2, 1.2])
    open_ = Sides([1.0] * 5, [1.0, 1.3, 0.8, 1.2, 0.9])
    first = judge.judge({"clear": clear, "open": open_})
    assert verdicts(first) == ["slower", "ambiguous"]
    later = Sides([*clear.base, *clear.base], [*clear.current, *[1.0] * 5])
    again = judge.judge({"clear": later, "open": open_}, last=True)
    assert again[0] == first[0]


def test_one_large_and_many_equal_cases_share_alpha() -> None:
    """One case alone is held to a wider level than one of many."""
    case = Sides([1.0] * 5, [1.05, 1.09, 1.02, 1.07, 1.10])
    (alone,) = Sequential().judge({"c": case})
    many = Sequential().judge({str(n): case for n in range(30)})
    assert alone.low is not None
    assert many[0].low is not None
    assert many[0].low < alone.low


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_time_is_incomparable(value: float) -> None:
    (row,) = Sequential().judge({"c": Sides([1.0] * 5, [1.0, 1.0, value, 1.0, 1.0])})
    assert row.verdict == "incomparable"
    assert (row.ratio, row.low) == (None, None)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_too_few_restarts_decide_nothing(count: int) -> None:
    (row,) = Sequential().judge({"c": Sides([1.0] * count, [2.0] * count)}, last=True)
    assert row.verdict == "ambiguous"
    assert row.low is None
    assert "restarts" in row.reason or "not reached" in row.reason
    assert Comparison([row]).exit_code()[0] == 5


def test_equal_times_are_as_sure_as_the_timer() -> None:
    exact = Sides([1e-6] * 5, [1e-6] * 5, tick=0.0)
    coarse = Sides([1e-6] * 5, [1e-6] * 5, tick=1e-6)
    assert verdicts(judged({"c": exact})) == ["same"]
    assert verdicts(judged({"c": coarse})) == ["ambiguous"]


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 40))
def test_looks_rise(first: int) -> None:
    assert looks(first)[0] == first
    assert list(looks(first)) == sorted(set(looks(first)))


def test_hodges_lehmann_is_the_centre_and_ignores_a_few() -> None:
    assert hodges_lehmann([1.0, 2.0, 3.0]) == 2.0
    assert hodges_lehmann([0.5]) == 0.5
    disturbed = [0.0, 0.01, -0.01, 0.005, -0.005, 0.0, 0.002, 3.0]
    assert abs(hodges_lehmann(disturbed)) < 0.01
