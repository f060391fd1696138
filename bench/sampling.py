"""When to stop sampling, as a pure function of what a sample returns and of a clock.

The interval of the median is the distribution-free one (order statistics of the binomial): no
shape is assumed and outliers stay in. Every sample is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

CONFIDENCE = 0.95
_MAX_VOID = 20
_ABSURD_SECONDS = 3600.0


class TimerError(Exception):
    """The timer gave values that are not times; the message says which."""


@dataclass(frozen=True)
class Rule:
    """Stop at `min_samples` once the half-width of the median's interval is below `target`
    (relative), at `max_samples`, or once `seconds` of wall time are gone, whichever is first.

    granularity: what the timer can tell apart, in seconds: no interval is narrower.
    """

    target: float = 0.005
    min_samples: int = 10
    max_samples: int = 100
    seconds: float = 1.0
    granularity: float = 0.0


@dataclass(frozen=True)
class Samples:
    """Every valid sample in order, in seconds; `stop` is "interval", "samples" or "time"."""

    seconds: list[float]
    stop: str
    voided: int


def collect(sample: Callable[[], float | None], rule: Rule, clock: Callable[[], float]) -> Samples:
    """Call `sample` until the rule is met. None is a void sample (its gate timed out).

    Raises TimerError after more than 20 void or invalid (zero, negative, NaN, absurd) values, so
    that a broken timer costs bounded work and never becomes a bandwidth.
    """
    seconds: list[float] = []
    bad: list[float | None] = []
    start = clock()
    while True:
        value = sample()
        if value is None or not 0.0 < value < _ABSURD_SECONDS:
            bad.append(value)
            if len(bad) > _MAX_VOID:
                raise TimerError(f"{len(bad)} samples are not times, the last one {value!r}")
            continue
        seconds.append(value)
        elapsed = clock() - start
        # A clock that went backwards says nothing: count it as time used up.
        out_of_time = elapsed >= rule.seconds or elapsed < 0
        if len(seconds) >= rule.min_samples:
            if _precise(seconds, rule):
                return Samples(seconds, "interval", len(bad))
            if len(seconds) >= rule.max_samples:
                return Samples(seconds, "samples", len(bad))
            if out_of_time:
                return Samples(seconds, "time", len(bad))
        elif elapsed >= 10 * rule.seconds or elapsed < 0:
            return Samples(seconds, "time", len(bad))


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the median; None below six values, where there is none."""
    ordered = sorted(values)
    rank = _interval_rank(len(ordered))
    return None if rank is None else (ordered[rank], ordered[-1 - rank])


def _precise(seconds: Sequence[float], rule: Rule) -> bool:
    interval = median_interval(seconds)
    if interval is None:
        return False
    half = max((interval[1] - interval[0]) / 2, rule.granularity / 2)
    return half <= rule.target * median(seconds)


@cache
def _interval_rank(n: int) -> int | None:
    """Largest k with P(k <= Binomial(n, 1/2) < n - k) >= 95 %: ranks k and n-1-k bound it."""
    tail, rank = 0.0, None
    for k in range(n // 2):
        tail += math.comb(n, k) / 2**n
        if 2 * tail > 1 - CONFIDENCE:
            break
        rank = k
    return rank
