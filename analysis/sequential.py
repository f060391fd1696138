"""Verdicts on two revisions measured side by side, restart by restart, at looks fixed beforehand.

A restart gives one time of each side, taken by processes that alternate: its logarithm of
current / base is one value, and these are what differs independently. At each look the mean of a
case has its t interval; the case is decided where the whole interval lies beyond the threshold, or
inside, and is ambiguous otherwise, as in `judge`.

Looking repeatedly is paid for. After a share t of the restarts, alpha(t) = alpha ln(1 + (e - 1) t)
may have been spent (Lan and DeMets, Biometrika 70, 1983: the form like Pocock's boundary); a look
is judged at what its share adds, the last one at all that is left. The sum of the levels is alpha,
so the chance that a case is ever decided wrongly is at most alpha whatever the looks have in
common: no joint distribution is assumed, only t at each look. Within a look Holm's procedure
divides the level over the cases, those found slower or faster before counting as rejected first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from statistics import fmean, median

from .judge import DECIDED, THRESHOLD, Compared, placed
from .statistics import ALPHA, holm, quantile_t, tail_t, usable, variance_of_logs

_STEPS = (1.0, 1.6, 2.4, 3.2, 4.0)


def looks(first: int) -> tuple[int, ...]:
    """Restarts after which is judged: 5, 8, 12, 16 and 20 of a first look at 5."""
    return tuple(math.ceil(step * first) for step in _STEPS)


def spending(share: float, alpha: float = ALPHA) -> float:
    """Alpha that may have been spent once `share` of the restarts (0 to 1) is there."""
    return alpha * math.log1p((math.e - 1) * min(share, 1.0))


def hodges_lehmann(values: Sequence[float]) -> float:
    """The median of the means of all pairs, each value with itself included.

    As robust against a few disturbed values as it must be, and nearly as sure as their mean where
    there are none. Of the blocks of a restart on a machine that others were using, it differed a
    fifth less between restarts than the mean did.
    """
    return median((a + b) / 2 for a, b in combinations_with_replacement(values, 2))


@dataclass(frozen=True)
class Sides:
    """One case: seconds of both sides, restart by restart, and the step of the timer."""

    base: Sequence[float]
    current: Sequence[float]
    tick: float = 0.0


@dataclass(frozen=True)
class _Mean:
    """Logarithm of current / base over the restarts: estimate and standard error."""

    estimate: float
    error: float
    freedom: int

    def half_width(self, level: float) -> float:
        return self.error * quantile_t(1 - level / 2, self.freedom)

    def p_beyond(self, limit: float) -> float:
        """Two-sided p-value of a change of at most `limit` (a logarithm) either way."""
        if self.error == 0:
            return 0.0 if abs(self.estimate) > limit else 1.0
        return min(1.0, 2 * tail_t((abs(self.estimate) - limit) / self.error, self.freedom))


@dataclass
class Sequential:
    """The looks at one comparison: what has been decided, and how much alpha is spent.

    first: restarts before the first look, at least 2. threshold: relative change that matters.
    """

    first: int = 5
    threshold: float = THRESHOLD
    alpha: float = ALPHA
    decided: dict[str, Compared] = field(default_factory=dict)
    _spent: float = 0.0

    @property
    def most(self) -> int:
        """Restarts after which nothing more is learnt."""
        return looks(self.first)[-1]

    def due(self, restarts: int) -> bool:
        return restarts in looks(self.first)

    def judge(self, sides: Mapping[str, Sides], last: bool = False) -> list[Compared]:
        """Every case's verdict as of now. What was decided at an earlier look stays as it was.

        last: no look follows; all alpha that is left is spent.
        """
        limit = math.log1p(self.threshold)
        restarts = max((len(side.base) for side in sides.values()), default=0)
        level = self._level(restarts, last)
        means = {
            case: _mean(side)
            for case, side in sides.items()
            if case not in self.decided and len(side.base) >= self.first and _fit(side)
        }
        order = [case for case in sides if case in means or case in self.decided]
        levels = holm([self._p(case, means, limit) for case in order], level)
        at = dict(zip(order, levels, strict=True))
        rows = []
        for case, side in sides.items():
            row = self.decided.get(case)
            if row is None:
                row = _judged(case, side, means.get(case), at.get(case, 0.0), limit, self.first)
            if row.verdict in DECIDED:
                self.decided[case] = row
            rows.append(row)
        return rows

    def _level(self, restarts: int, last: bool) -> float:
        total = self.alpha if last else spending(restarts / self.most, self.alpha)
        level = max(0.0, total - self._spent)
        self._spent = max(self._spent, total)
        return level

    def _p(self, case: str, means: Mapping[str, _Mean], limit: float) -> float:
        if case in means:
            return means[case].p_beyond(limit)
        return 1.0 if self.decided[case].verdict == "same" else 0.0


def _fit(side: Sides) -> bool:
    return usable(side.base) and usable(side.current) and len(side.base) == len(side.current)


def _mean(side: Sides) -> _Mean:
    ratios = [c / b for b, c in zip(side.base, side.current, strict=True)]
    rounding = side.tick / median(side.base) / math.sqrt(12)
    rounding = math.hypot(rounding, side.tick / median(side.current) / math.sqrt(12))
    error = math.sqrt((variance_of_logs(ratios) + rounding**2) / len(ratios))
    return _Mean(fmean(map(math.log, ratios)), error, len(ratios) - 1)


def _judged(
    case: str, side: Sides, mean: _Mean | None, level: float, limit: float, first: int
) -> Compared:
    count = len(side.base)
    row = Compared(case, "ambiguous", "", base_processes=count, current_processes=count)
    if count == 0:
        return replace(row, reason="not reached before the time limit")
    if not _fit(side):
        return replace(row, verdict="incomparable", reason="a time is not finite and above zero")
    row = replace(row, base_seconds=median(side.base), current_seconds=median(side.current))
    if mean is None:
        return replace(row, reason=f"{count} of at least {first} restarts")
    row = replace(row, ratio=math.exp(mean.estimate))
    if level <= 0:
        return replace(row, reason="no alpha is left to judge it at")
    half = mean.half_width(level)
    low, high = mean.estimate - half, mean.estimate + half
    verdict, reason = placed(low, high, limit)
    return replace(
        row,
        verdict=verdict,
        reason=f"{reason} in {count} restarts",
        low=math.exp(min(low, 700)),
        high=math.exp(min(high, 700)),
        smallest=math.expm1(min(limit + half, 700)),
    )
