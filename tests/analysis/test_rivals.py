"""The rules that ours are held against say what their authors' would."""

from __future__ import annotations

import random

import pytest
from membound.analysis.rivals import (
    RULES,
    Samples,
    compare_fail,
    median_threshold,
    percentile_bootstrap,
)


def side(factor: float, spread: float = 0.001, processes: int = 6, seed: int = 0) -> Samples:
    noise = random.Random(seed)
    return [[factor * noise.gauss(1, spread) for _ in range(9)] for _ in range(processes)]


@pytest.mark.parametrize(("factor", "verdict"), [(1.1, "slower"), (1.0, "same")])
@pytest.mark.parametrize("name", RULES)
def test_what_is_clear_is_clear_to_all(name: str, factor: float, verdict: str) -> None:
    assert RULES[name](side(1.0), side(factor, seed=1)) == verdict


def test_what_became_faster_is_seen_but_by_compare_fail() -> None:
    base, current = side(1.0), side(0.9, seed=1)
    assert compare_fail(base, current) == "same"
    assert median_threshold(base, current) == "faster"
    assert percentile_bootstrap(base, current) == "faster"


def test_noise_decides_where_a_rule_has_no_interval() -> None:
    base = [[1.0, 1.0, 1.0]] * 3
    current = [[1.0, 1.0, 1.0], [1.06, 1.06, 1.06], [1.06, 1.06, 1.06]]
    assert compare_fail(base, current) == "slower"
    assert median_threshold(base, current) == "slower"
    assert percentile_bootstrap(base, current) == "ambiguous"
