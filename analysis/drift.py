"""How the machine's speed moved while a run measured, and whether to take that out.

The reference copy (the driver's memcpy, code that no one changes) is timed again after every group
of cases. A course holds its speeds over one process in units of their geometric mean; at the
position of a case it is interpolated between the copies before and after, in logarithms. A
corrected time is `time x speed of the copy there / mean speed`, the mean over the process, or over
the run, which takes out that one process met a slower machine than another.

A correction adds the noise of the copies to every time, so it has to earn its place, per run and
cache state, over all DRAM-sized cases of two or more processes at once:

- Within processes the times must follow the copies more closely than chance has it (LEVEL,
  one-sided t of their correlation, cases between the same two copies counted once). Differences
  between whole processes are no evidence: there are too few, and buffers placed well or badly
  make them as well.
- The spread of a case between processes must fall by MARGIN at least; of the two means, the one
  that leaves less is taken.

Otherwise figures stay as measured. `compare` and `gate` never correct: a correction kept because
it narrows a spread would narrow their intervals with it. Nor do exported files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

import numpy as np
import pandas as pd

from .cases import records
from .statistics import tail_t, usable

REFERENCE = "memcpy"
"""The implementation whose records are the reference copy's."""
MARGIN = 0.10
"""Share of the spread that a correction has to remove."""
LEVEL = 0.01
"""Chance of a correlation at least as strong where times and copies have nothing in common."""
MOVED = 0.10
"""From this range of the copy over a process on, the run carries a warning."""
_FOR_TREND = 3


@dataclass(frozen=True)
class Course:
    """The reference copy over one process: logarithms of speed / mean speed, by position."""

    process: int
    positions: tuple[int, ...]
    logarithms: tuple[float, ...]
    rate: float  # GB/s, the geometric mean

    @property
    def low(self) -> float:
        """The slowest copy relative to the mean: -0.04 is 4 % slower."""
        return math.expm1(min(self.logarithms))

    @property
    def high(self) -> float:
        return math.expm1(max(self.logarithms))

    @property
    def moved(self) -> float:
        """By how much the fastest copy was faster than the slowest."""
        return math.expm1(max(self.logarithms) - min(self.logarithms))

    @property
    def trend(self) -> float | None:
        """Change from the first copy to the last along the Theil-Sen line; None below three."""
        points = list(zip(self.positions, self.logarithms, strict=True))
        if len(points) < _FOR_TREND:
            return None
        slopes = [(b - a) / (q - p) for i, (p, a) in enumerate(points) for q, b in points[i + 1 :]]
        return math.expm1(median(slopes) * (self.positions[-1] - self.positions[0]))

    def at(self, position: int) -> float:
        """log(speed / mean speed) at a position; beyond the first or last copy, that copy's."""
        return float(np.interp(position, self.positions, self.logarithms))


@dataclass(frozen=True)
class Drift:
    """One run in one cache state. Spreads are standard deviations of logarithms, about relative.

    unknown: why the copies do not say how every process went; None where they do.
    mean: to whose mean speed times are corrected, "process" or "run"; None: they are not.
    spread, corrected_spread: between processes, pooled over cases, None where nothing shows them.
    why: whether times are corrected, with both spreads, in one line.
    """

    run: str
    cache: str
    courses: Mapping[int, Course] = field(repr=False)
    why: str
    unknown: str | None = None
    mean: str | None = None
    spread: float | None = None
    corrected_spread: float | None = None

    @property
    def applied(self) -> bool:
        return self.mean is not None

    def factor(self, process: int, position: int) -> float:
        """Speed of the copy at that place / mean speed, where times are corrected; else 1."""
        course = self.courses.get(process)
        if course is None or self.mean is None:
            return 1.0
        level = 0.0 if self.mean == "process" else _level(course, self.courses)
        return math.exp(course.at(position) + level)

    @property
    def widest(self) -> Course | None:
        """The process over which the copy moved most."""
        return max(self.courses.values(), key=lambda course: course.moved, default=None)

    @property
    def line(self) -> str:
        """All of it in one line: `-4.0% to +7.0% over process 2, trend -1.2%; not corrected: …`"""
        course = self.widest
        parts = []
        if course is not None:
            trend = "unknown" if course.trend is None else f"{course.trend:+.1%}"
            moved = f"{course.low:+.1%} to {course.high:+.1%} over process {course.process}"
            parts.append(f"{moved}, trend {trend}")
        if self.unknown:
            parts.append(f"drift unknown: {self.unknown}")
        return "; ".join([*parts, self.why])

    @property
    def warning(self) -> str | None:
        """One line where the copy moved by more than MOVED; None where it did not."""
        course = self.widest
        if course is None or course.moved <= MOVED:
            return None
        figures = "corrected for it" if self.applied else "as measured"
        return (
            f"the reference copy, {self.cache}, moved by {course.moved:.0%} over process "
            f"{course.process}: the machine did not keep its speed; figures are {figures}"
        )


def drifts(frame: pd.DataFrame) -> list[Drift]:
    """The drift of every run and cache state in the table that has anything measured."""
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records(frame):
        grouped.setdefault((record["run"], record["cache"]), []).append(record)
    return [_drift(run, cache, some) for (run, cache), some in grouped.items() if _measured(some)]


def corrected(frame: pd.DataFrame, found: Iterable[Drift]) -> pd.DataFrame:
    """The table with drift taken out of times and bandwidths where `found` says it is applied.

    Only DRAM-sized cases are touched: what a cache serves does not follow the memory. The copies
    themselves stay as measured.
    """
    applied = {(drift.run, drift.cache): drift for drift in found if drift.applied}
    if not applied:
        return frame
    factors = []
    for record in records(frame):
        drift = applied.get((record["run"], record["cache"])) if _follows(record) else None
        factors.append(drift.factor(record["process"], record["position"]) if drift else 1.0)
    factor = pd.Series(factors, index=frame.index, dtype="float64")
    times = {
        name: frame[name] * factor for name in ("median_seconds", "low_seconds", "high_seconds")
    }
    return frame.assign(**times, gb_per_s=frame["gb_per_s"] / factor)


def _measured(some: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was timed, the copies apart."""
    return [
        record
        for record in some
        if record["implementation"] != REFERENCE
        and record["status"] == "ok"
        and usable([record["median_seconds"]])
    ]


def _follows(record: Mapping[str, Any]) -> bool:
    """Whether its time is that of the memory, as the copy's is."""
    return bool(record["implementation"] != REFERENCE and record["dram_sized"])


def _drift(run: str, cache: str, some: Sequence[dict[str, Any]]) -> Drift:
    timed = _measured(some)
    copies: dict[int, list[dict[str, Any]]] = {record["process"]: [] for record in timed}
    for record in some:
        if record["implementation"] == REFERENCE:
            copies.setdefault(record["process"], []).append(record)
    courses = {
        process: course
        for process, of_process in sorted(copies.items())
        if (course := _course(process, of_process)) is not None
    }
    unknown = next(
        (
            _no_course(process, copies[process])
            for process in sorted({record["process"] for record in timed} - courses.keys())
        ),
        None,
    )
    if unknown:
        return Drift(run, cache, courses, "not corrected", unknown)
    wrong = {record["case"] for record in some if record["status"] == "wrong"}
    judged = [r for r in timed if _follows(r) and r["case"] not in wrong]
    return _judged(Drift(run, cache, courses, ""), judged)


def _course(process: int, copies: Iterable[Mapping[str, Any]]) -> Course | None:
    """None where fewer than two copies succeeded: one shows no change."""
    good = sorted(
        (copy["position"], copy["gb_per_s"])
        for copy in copies
        if copy["status"] == "ok" and usable([copy["gb_per_s"]])
    )
    if len(good) < 2:
        return None
    logarithms = [math.log(rate) for _, rate in good]
    mean = fmean(logarithms)
    positions = tuple(position for position, _ in good)
    return Course(process, positions, tuple(v - mean for v in logarithms), math.exp(mean))


def _level(course: Course, courses: Mapping[int, Course]) -> float:
    """log(mean speed of the process / mean speed of the run)."""
    return math.log(course.rate) - fmean(math.log(other.rate) for other in courses.values())


def _no_course(process: int, copies: Sequence[Mapping[str, Any]]) -> str:
    bad = next((copy for copy in copies if copy["status"] != "ok"), None)
    why = f", one {bad['status']}: {bad['reason']}" if bad else ""
    good = sum(copy["status"] == "ok" for copy in copies)
    count = {0: "no reference copy", 1: "one reference copy"}.get(good, "no usable reference copy")
    return f"process {process} has {count}{why}"


@dataclass(frozen=True)
class _Deviation:
    """Logarithms against the mean of their case over its processes."""

    group: tuple[Any, ...]
    process: int
    time: float
    within: float  # speed of the copy, against the mean of its process
    level: float  # mean speed of the process, against the run's

    def left(self, mean: str) -> float:
        """What a correction to that mean leaves of the time's deviation."""
        return self.time + self.within + (self.level if mean == "run" else 0.0)


def _judged(drift: Drift, timed: Iterable[Mapping[str, Any]]) -> Drift:
    """The drift with its spreads and the decision, from the records that follow the memory."""
    by_case: dict[str, list[Mapping[str, Any]]] = {}
    for record in timed:
        by_case.setdefault(record["case"], []).append(record)
    found = [d for some in by_case.values() for d in _deviations(some, drift.courses)]
    freedom = len(found) - len(by_case)
    if not freedom:
        why = "not corrected: no DRAM-sized case in two processes to judge by"
        return replace(drift, why=why)
    spread = math.sqrt(sum(d.time**2 for d in found) / freedom)
    left, mean = min(
        (math.sqrt(sum(d.left(mean) ** 2 for d in found) / freedom), mean)
        for mean in ("process", "run")
    )
    change = f"the spread between processes from {spread:.1%} to {left:.1%}"
    drift = replace(drift, spread=spread, corrected_spread=left)
    if left >= spread:
        why = f"not corrected: it would not reduce the spread, but take {change}"
        return replace(drift, why=why)
    if left > (1 - MARGIN) * spread:
        return replace(drift, why=f"not corrected: it would only take {change}")
    if _chance(found) > LEVEL:
        why = f"not corrected: it would take {change}, but times do not follow the copy"
        return replace(drift, why=why)
    why = f"corrected for drift to the mean of the {mean}, which took {change}"
    return replace(drift, mean=mean, why=why)


def _deviations(
    some: Sequence[Mapping[str, Any]], courses: Mapping[int, Course]
) -> Iterator[_Deviation]:
    columns = [
        [math.log(record["median_seconds"]) for record in some],
        [courses[record["process"]].at(record["position"]) for record in some],
        [_level(courses[record["process"]], courses) for record in some],
    ]
    centred = ([value - fmean(column) for value in column] for column in columns)
    for record, time, within, level in zip(some, *centred, strict=True):
        group = tuple(record[name] for name in _GROUP)
        yield _Deviation(group, record["process"], time, within, level)


_GROUP = ("operation", "direction", "dtype", "shape")
"""Cases of one group are measured between the same two copies."""


def _chance(found: Sequence[_Deviation]) -> float:
    """One-sided p-value of short times where the copy is fast, one value a group and process.

    What a whole process has in common is taken out: it is one observation, not one a group.
    """
    cells: dict[tuple[Any, int], list[_Deviation]] = {}
    for deviation in found:
        cells.setdefault((deviation.group, deviation.process), []).append(deviation)
    times = _without_common({key: fmean(d.time for d in some) for key, some in cells.items()})
    speeds = _without_common({key: fmean(d.within for d in some) for key, some in cells.items()})
    groups, processes = ({key[i] for key in cells} for i in (0, 1))
    freedom = len(cells) - len(groups) - (len(processes) - 1) - 1
    size = math.sqrt(sum(t**2 for t in times) * sum(s**2 for s in speeds))
    if freedom < 1 or size == 0:
        return 1.0
    correlation = min(-sum(t * s for t, s in zip(times, speeds, strict=True)) / size, 1.0)
    noise = max(1 - correlation**2, 1e-15)
    return tail_t(correlation * math.sqrt(freedom / noise), freedom)


def _without_common(values: Mapping[tuple[Any, int], float]) -> list[float]:
    """Each value less the mean of its process."""
    by_process: dict[int, list[float]] = {}
    for (_, process), value in values.items():
        by_process.setdefault(process, []).append(value)
    return [value - fmean(by_process[process]) for (_, process), value in values.items()]
