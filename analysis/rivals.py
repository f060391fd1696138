"""Other rules for calling a case slower, as pure functions, to hold ours against.

Each takes the seconds of one case on both sides, process by process, and says "same", "faster",
"slower" or "ambiguous", as `judge` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from statistics import median

import numpy as np

from .judge import THRESHOLD, placed

Samples = Sequence[Sequence[float]]
Rule = Callable[[Samples, Samples], str]

_RESAMPLES = 1000


def compare_fail(base: Samples, current: Samples) -> str:
    """pytest-benchmark's --benchmark-compare-fail=median:3%: the medians of all samples at once.

    It knows slower or not.
    """
    ratio = median(chain.from_iterable(current)) / median(chain.from_iterable(base))
    return "slower" if ratio > 1 + THRESHOLD else "same"


def median_threshold(base: Samples, current: Samples) -> str:
    """The ratio of the medians of process medians, against the threshold."""
    change = math.log(median(map(median, current)) / median(map(median, base)))
    return placed(change, change, math.log1p(THRESHOLD))[0]


def percentile_bootstrap(base: Samples, current: Samples) -> str:
    """The 95 % percentile interval of the ratio of medians, process medians drawn again."""
    draw = np.random.default_rng(0)
    logs = []
    for side in (base, current):
        medians = np.log([median(samples) for samples in side])
        chosen = draw.integers(0, len(medians), (_RESAMPLES, len(medians)))
        logs.append(np.median(medians[chosen], axis=1))
    low, high = np.quantile(logs[1] - logs[0], (0.025, 0.975))
    return placed(float(low), float(high), math.log1p(THRESHOLD))[0]


RULES: Mapping[str, Rule] = {
    "pytest-benchmark median:3%": compare_fail,
    "median threshold": median_threshold,
    "percentile bootstrap": percentile_bootstrap,
}
