"""Measurements made while the machine was busy with something else, set aside before comparing.

The reference copy is code that no one changes, timed before and after every group of cases. Where
it was slower by `BUSY` than it usually is, on both sides together, another tenant had the memory or
the core, and the times beside it say nothing of the code. A side keeps all its processes where more
than half of them were so: then nothing says which state is the machine's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from .cases import records
from .drift import REFERENCE, Course, drifts

BUSY = 1.25
"""Times as long as usual that a reference copy takes beside what is set aside."""


@dataclass(frozen=True)
class Calm:
    """Both tables without what was set aside, and by case how much that was, in words."""

    base: pd.DataFrame
    current: pd.DataFrame
    notes: Mapping[str, str]


def calm(base: pd.DataFrame, current: pd.DataFrame) -> Calm:
    """Set aside what was measured on a busy machine; both tables are of one device."""
    sides = [_beside(base), _beside(current)]
    together = pd.concat(sides)
    # The upper quartile, since others only take away; by case, as a run may slow towards its end.
    usual = together["rate"].groupby(together["case"]).quantile(0.75)
    notes: dict[str, list[str]] = {}
    kept = []
    for table, beside, name in zip((base, current), sides, ("baseline", "current"), strict=True):
        slowed = beside["case"].map(usual).astype("float64") / beside["rate"]  # empty maps as text
        by_case = (slowed > BUSY).groupby(beside["case"])
        aside = (slowed > BUSY) & (2 * by_case.transform("sum") <= by_case.transform("size"))
        for case, some in slowed[aside].groupby(beside["case"][aside]):
            notes.setdefault(str(case), []).append(
                f"{len(some)} of {len(by_case.get_group(case))} {name} times set aside: the copy "
                f"beside them took {some.max():.2f} times as long as usual"
            )
        kept.append(table.drop(index=beside.index[aside]))
    return Calm(kept[0], kept[1], {case: "; ".join(lines) for case, lines in notes.items()})


def _beside(table: pd.DataFrame) -> pd.DataFrame:
    """Case and GB/s of the reference copy beside it, for every row that was timed; NaN unknown."""
    courses = {
        (drift.run, drift.cache, process): course
        for drift in drifts(table)
        for process, course in drift.courses.items()
    }
    timed = table[(table["status"] == "ok") & (table["implementation"] != REFERENCE)]
    rates = [_rate(courses, record) for record in records(timed)]
    return pd.DataFrame(
        {"case": timed["case"], "rate": pd.Series(rates, index=timed.index, dtype="float64")}
    )


def _rate(courses: Mapping[tuple[str, str, int], Course], record: Mapping[str, Any]) -> float:
    course = courses.get((record["run"], record["cache"], record["process"]))
    return course.rate * math.exp(course.at(record["position"])) if course else math.nan
