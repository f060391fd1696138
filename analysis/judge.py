"""Verdicts on pairs of process medians: the statistics of a comparison and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from .statistics import MIN_FOR_INTERVAL, Difference, holm, usable, variance_of_logs, welch

THRESHOLD = 0.03
DECIDED = ("same", "faster", "slower")


@dataclass(frozen=True)
class Compared:
    """One case. `smallest`: the smallest relative change that would have been called slower.

    remark: whether the reason says more than the interval does.
    """

    case: str
    verdict: str
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    smallest: float | None = None
    base_seconds: float | None = None
    current_seconds: float | None = None
    base_processes: int = 0
    current_processes: int = 0
    remark: bool = False


@dataclass(frozen=True)
class Pair:
    """Process medians of one case on both sides; `verdict` is set where they cannot be compared."""

    case: str
    base: Sequence[float] = ()
    current: Sequence[float] = ()
    tick: float = 1e-9
    throttled: bool = False
    verdict: str | None = None
    reason: str = ""


def judged(pairs: Sequence[Pair], threshold: float = THRESHOLD) -> list[Compared]:
    """The verdict of every pair. Times that are not finite and positive are incomparable.

    Two families of tests, each held to ALPHA by Holm's procedure: that a case changed by more than
    the threshold, and that it changed by less. Fewer than MIN_FOR_INTERVAL processes on a side say
    nothing of their spread, and few say little: what is usual among all cases counts as well.
    """
    limit = math.log1p(threshold)
    differences: dict[int, Difference] = {}
    known = {index: pair for index, pair in enumerate(pairs) if _tells_spread(pair)}
    spreads = [variance_of_logs(side) for p in known.values() for side in (p.base, p.current)]
    usual = median(spreads) if spreads else 0.0
    for index, pair in known.items():
        found = welch(pair.base, pair.current, pair.tick, usual)
        if found is not None:
            differences[index] = found
    beyond = holm([difference.p_beyond(limit) for difference in differences.values()])
    inside = holm([difference.p_inside(limit) for difference in differences.values()])
    levels = dict(zip(differences, zip(beyond, inside, strict=True), strict=True))
    return [
        _judged(pair, differences.get(index), levels.get(index), limit)
        for index, pair in enumerate(pairs)
    ]


def _tells_spread(pair: Pair) -> bool:
    sides = (pair.base, pair.current)
    return pair.verdict is None and all(
        usable(side) and len(side) >= MIN_FOR_INTERVAL for side in sides
    )


def _judged(
    pair: Pair, difference: Difference | None, levels: tuple[float, float] | None, limit: float
) -> Compared:
    if pair.verdict is not None:
        return Compared(pair.case, pair.verdict, pair.reason)
    for side, values in (("baseline", pair.base), ("current", pair.current)):
        if not usable(values):
            reason = f"no finite time above zero in the {side}"
            return Compared(pair.case, "incomparable", reason)
    ratio = median(pair.current) / median(pair.base)
    fewest = min(len(pair.base), len(pair.current))
    reason = f"{'one process' if fewest == 1 else f'{fewest} processes'} on a side"
    verdict, low, high, smallest = "ambiguous", None, None, None
    if difference is not None and levels is not None:
        beyond, inside = levels
        half = difference.half_width(1 - beyond)
        smallest = _grown(limit + half)
        if difference.p_inside(limit) <= inside:
            half = difference.half_width(1 - 2 * inside)
        low, high = difference.estimate - half, difference.estimate + half
        verdict, reason = placed(low, high, limit)
        low, high = _exp(low), _exp(high)
    return Compared(
        pair.case,
        verdict,
        reason,
        ratio,
        low,
        high,
        smallest,
        median(pair.base),
        median(pair.current),
        len(pair.base),
        len(pair.current),
    )


def placed(low: float, high: float, limit: float) -> tuple[str, str]:
    """Verdict and reason of an interval of a logarithm of current / base against a limit."""
    if low > limit:
        return "slower", f"at least {_grown(low):.1%} slower"
    if high < -limit:
        return "faster", f"at least {-_grown(high):.1%} less time"
    if -limit <= low and high <= limit:
        return "same", f"between {_grown(low):+.1%} and {_grown(high):+.1%}"
    return "ambiguous", f"between {_grown(low):+.1%} and {_grown(high):+.1%}"


def _exp(logarithm: float) -> float:
    return math.exp(min(logarithm, 700.0))


def _grown(logarithm: float) -> float:
    return _exp(logarithm) - 1
