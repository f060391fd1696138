"""Intervals and tests on times, as pure functions of lists of positive seconds.

Processes differ more than samples do, so an interval of a case is of its process medians, on
logarithms because noise multiplies. Samples only say how sure one process is of its own median.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median

import numpy as np

CONFIDENCE = 0.95
ALPHA = 0.05
MIN_FOR_INTERVAL = 3
"""Fewer values than this say nothing about their spread."""


def usable(values: Sequence[float | None]) -> bool:
    """Whether there are values and every one is a finite time above zero."""
    return bool(values) and all(
        value is not None and math.isfinite(value) and value > 0 for value in values
    )


def quantile_t(probability: float, freedom: float) -> float:
    """Quantile of Student's t distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def tail_t(statistic: float, freedom: float) -> float:
    """P(T > statistic) of Student's t distribution."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -statistic))


@cache
def _median_rank(count: int) -> int | None:
    """Largest r such that order statistics r and count + 1 - r hold the median at CONFIDENCE."""
    from scipy.special import bdtrik

    rank = math.floor(float(bdtrik(ALPHA / 2, count, 0.5))) if count >= 6 else -1
    # bdtrik interpolates; step to the exact rank.
    while rank >= 0 and _binomial(rank, count) > ALPHA / 2:
        rank -= 1
    while count >= 6 and _binomial(rank + 1, count) <= ALPHA / 2:
        rank += 1
    return rank + 1 if rank >= 0 else None


def _binomial(successes: int, count: int) -> float:
    from scipy.special import bdtr

    return float(bdtr(successes, count, 0.5)) if successes >= 0 else 0.0


def sample_interval(ordered: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the median of one process's sorted samples, from order statistics.

    It assumes nothing of their distribution; None below six samples.
    """
    rank = _median_rank(len(ordered))
    return (ordered[rank - 1], ordered[-rank]) if rank else None


def variance_of_logs(values: Sequence[float]) -> float:
    """Variance of a sample of logarithms (over count - 1); at least two values, above zero."""
    return float(np.var(np.log(values), ddof=1))


@dataclass(frozen=True)
class Centre:
    """The median of process medians with its interval; None where too few processes."""

    value: float
    low: float | None
    high: float | None
    spread: float | None  # standard deviation of the logarithms, about the relative one


def centre(medians: Sequence[float], tick: float = 0.0) -> Centre:
    """t interval on the logarithms of process medians, around their median.

    tick: step of the timer in seconds; a value rounded to it is uncertain by tick / sqrt(12), so
    that equal medians are not infinitely sure.
    """
    if not usable(medians):
        raise ValueError("process medians are finite seconds above zero")
    middle = median(medians)
    spread = math.sqrt(variance_of_logs(medians)) if len(medians) > 1 else None
    if spread is None or len(medians) < MIN_FOR_INTERVAL:
        return Centre(middle, None, None, spread)
    rounding = tick / middle / math.sqrt(12)
    half = math.sqrt((spread**2 + rounding**2) / len(medians))
    half *= quantile_t((1 + CONFIDENCE) / 2, len(medians) - 1)
    half = min(half, 300.0)  # beyond every time there is; exp would overflow
    return Centre(middle, middle * math.exp(-half), middle * math.exp(half), spread)


@dataclass(frozen=True)
class Difference:
    """Logarithm of current / base: estimate, standard error and degrees of freedom (Welch)."""

    estimate: float
    error: float
    freedom: float

    def half_width(self, confidence: float) -> float:
        return self.error * quantile_t((1 + confidence) / 2, self.freedom)

    def p_beyond(self, limit: float) -> float:
        """Two-sided p-value of a change that is at most `limit` (a logarithm) either way."""
        statistic = (abs(self.estimate) - limit) / self.error
        return min(1.0, 2 * tail_t(statistic, self.freedom))

    def p_inside(self, limit: float) -> float:
        """p-value of a change that is at least `limit` (a logarithm): two one-sided t tests."""
        return tail_t((limit - abs(self.estimate)) / self.error, self.freedom)


ENOUGH = 6
"""From this many values on a side its own spread is taken as it is."""


def welch(
    base: Sequence[float], current: Sequence[float], tick: float = 1e-9, usual: float = 0.0
) -> Difference | None:
    """Welch's t on logarithms of process medians; None with fewer than two on a side.

    tick: step of the timer in seconds, as in `centre`. usual: variance of the logarithms that is
    usual beside them; a side of fewer than ENOUGH values is filled up with it where it is larger
    than its own. On a machine with two states three values are alike by chance once in three times,
    and would be sure of what they cannot know.
    """
    if not (usable(base) and usable(current)):
        raise ValueError("process medians are finite seconds above zero")
    if len(base) < 2 or len(current) < 2:
        return None
    parts = []
    for side in (base, current):
        rounding = tick / median(side) / math.sqrt(12)
        variance, lacking = variance_of_logs(side), max(0, ENOUGH - len(side))
        own = len(side) - 1
        variance = max(variance, (lacking * usual + own * variance) / (lacking + own))
        parts.append((variance + rounding**2) / len(side))
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(side) - 1) for part, side in zip(parts, (base, current), strict=True)
    )
    estimate = fmean(map(math.log, current)) - fmean(map(math.log, base))
    return Difference(estimate, error, freedom)


def paired(base: Sequence[float], current: Sequence[float]) -> Centre:
    """Ratio base / current of times measured by the same processes, pair by pair."""
    if not (usable(base) and usable(current)):
        raise ValueError("process medians are finite seconds above zero")
    return centre([b / c for b, c in zip(base, current, strict=True)])


def holm(p_values: Sequence[float], alpha: float = ALPHA) -> list[float]:
    """The level at which each hypothesis is judged by Holm's step-down procedure.

    Rejecting where p <= level is Holm's rule: once one is kept, all later ones share its level.
    """
    levels = [0.0] * len(p_values)
    stopped: float | None = None
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        level = alpha / (len(p_values) - rank)
        if stopped is None and p_values[index] > level:
            stopped = level
        levels[index] = level if stopped is None else stopped
    return levels
