"""Two sets of runs compared case by case: which became slower, and how sure that is.

    python -m membound.analysis.compare BASE CURRENT

Ratios are of times, current / base: above 1 is slower. Intervals are Welch's t on logarithms of
process medians, at levels that Holm's procedure gives for the number of cases. A case is slower
or faster only where its whole interval lies beyond the threshold, same only where it lies inside.

A machine that was busier during one of the runs slows all its processes alike, which no spread
between them shows. It slows their reference copies as well: a case is called slower or faster only
where it is so in units of those too, and same only where these do not say otherwise. A machine that
was busy during a few processes widens every interval: those are set aside (`calm`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import pandas as pd

from ..results.reading import Run
from .bandwidth import Achieved, achieved
from .calm import calm
from .cases import BROKEN, Case, cases
from .drift import REFERENCE
from .identity import (
    all_differences,
    condition_differences,
    device_differences,
    disturbances,
    environments,
    platform_differences,
)
from .judge import DECIDED, THRESHOLD, Compared, Pair, judged
from .loading import frame
from .statistics import ENOUGH
from .verdict import sound

GOOD, WORSE, NOT_COMPARABLE, INCONCLUSIVE = 0, 1, 3, 5


@dataclass(frozen=True)
class Comparison:
    """Every case with its verdict, what differs around them, and the exit code with its reason.

    differences: fields in which the devices differ. doubts: why the figures may not be trusted.
    wrong: cases whose result is wrong in the current runs. broken: cases that failed in some of
    their processes, and in none of the baseline's.
    """

    rows: list[Compared]
    differences: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    other_device: bool = False

    @property
    def relative(self) -> bool:
        """Whether devices differ and each is held to its own ceilings."""
        return bool(self.differences) and not self.other_device

    @property
    def _remedy(self) -> str:
        """What would decide more, where a case was measured in few processes."""
        fewest = (min(row.base_processes, row.current_processes) for row in self.rows)
        few = any(0 < processes < ENOUGH for processes in fewest)
        return f"; runs with --processes {ENOUGH} tell more apart" if few else ""

    def exit_code(self, strict: bool = False, allow_missing: bool = False) -> tuple[int, str]:
        """(code, why) as the table of exit codes has it."""
        count = Counter(row.verdict for row in self.rows)
        comparable = sum(count[name] for name in (*DECIDED, "ambiguous"))
        decided = sum(count[name] for name in DECIDED)
        rules = (
            (self.wrong, WORSE, f"{len(self.wrong)} wrong results"),
            (self.other_device, NOT_COMPARABLE, "another device: " + "; ".join(self.differences)),
            (not comparable, NOT_COMPARABLE, "no case can be compared"),
            (self.doubts, INCONCLUSIVE, f"inconclusive: {'; '.join(self.doubts)}"),
            (count["slower"], WORSE, f"{count['slower']} of {comparable} cases are slower"),
            (
                count["missing"] and not allow_missing,
                NOT_COMPARABLE,
                f"{count['missing']} cases of the baseline are missing",
            ),
            (
                self.broken and not allow_missing,
                NOT_COMPARABLE,
                f"{len(self.broken)} cases failed in some processes, and in none of the baseline",
            ),
            (
                2 * decided < comparable,
                INCONCLUSIVE,
                f"inconclusive: {decided} of {comparable} cases are decided{self._remedy}",
            ),
            (
                strict and count["ambiguous"],
                INCONCLUSIVE,
                f"inconclusive: {count['ambiguous']} cases are ambiguous{self._remedy}",
            ),
        )
        for applies, code, why in rules:
            if applies:
                return code, why
        return GOOD, f"no case of {comparable} is slower"


def compare(
    base: Sequence[Run],
    current: Sequence[Run],
    threshold: float = THRESHOLD,
    across_devices: bool = False,
) -> Comparison:
    """Compare every case of two sides of one or more runs each.

    threshold: relative change of time that matters. across_devices: compare devices that differ,
    by their times in units of their own measured ceilings, which are taken as exact.
    """
    identity = _identity(base, current)
    other = bool(identity)
    tables = frame(base), frame(current)
    notes: Mapping[str, str] = {}
    if not other:
        without = calm(*tables)
        tables, notes = (without.base, without.current), without.notes
    ours, theirs = (_by_case(table) for table in tables)
    runs = [*base, *current]
    doubts = [*platform_differences(runs), *disturbances(runs)]
    if not other:  # another device has its own driver, and its own ceilings with it
        doubts = [*all_differences(environments(runs), condition_differences), *doubts]
    if other and not across_devices:
        names = sorted(ours.keys() & theirs.keys())
        rows = [Compared(case, "incomparable", identity[0]) for case in names]
        return Comparison(rows, identity, doubts, other_device=True)
    scale_ours, scale_theirs = (_scales(side) if other else {} for side in (base, current))
    pairs = [
        _pair(
            case,
            ours.get(case, []),
            theirs.get(case, []),
            (scale_ours.get(case), scale_theirs.get(case)) if other else (1.0, 1.0),
        )
        for case in dict.fromkeys([*ours, *theirs])
        if not _is_copy(case, ours, theirs)
    ]
    throttled = [pair.case for pair in pairs if pair.throttled]
    if throttled:
        doubts.append(f"throttled: {', '.join(throttled[:3])}{' …' if throttled[3:] else ''}")
    wrong = [name for name, some in theirs.items() if any(c.status == "wrong" for c in some)]
    broken = [
        name
        for name, some in theirs.items()
        if name in ours and _failures(some) and not _failures(ours[name])
    ]
    rows = judged(pairs, threshold)
    if other:
        rows = [_in_seconds(row, ours.get(row.case, []), theirs.get(row.case, [])) for row in rows]
    else:
        copies = _copies(ours), _copies(theirs)
        relative = [
            _in_copies(
                pair,
                (ours.get(pair.case, []), theirs.get(pair.case, [])),
                copies,
            )
            for pair in pairs
        ]
        rows = [_agreed(*both) for both in zip(rows, judged(relative, threshold), strict=True)]
        rows = [_noted(row, notes.get(row.case)) for row in rows]
    rows = [_noted(row, _losses(ours.get(row.case, []), theirs.get(row.case, []))) for row in rows]
    return Comparison(rows, identity, doubts, wrong, broken)


def _in_seconds(row: Compared, base: Sequence[Case], current: Sequence[Case]) -> Compared:
    """The row, judged in units of the devices' ceilings, with its times as they were."""
    if row.base_seconds is None:
        return row
    ours, theirs = (
        median([s for case in side if case.status == "ok" for s in case.medians.values()])
        for side in (base, current)
    )
    return replace(row, base_seconds=ours, current_seconds=theirs)


def _failures(some: Sequence[Case]) -> list[str]:
    """What failed in processes or runs of a case that others measured."""
    if not any(case.status == "ok" for case in some):
        return []
    return [
        f"{case.status}: {case.reason}" if case.status in BROKEN else str(case.reason)
        for case in some
        if case.failed or case.status in BROKEN
    ]


def _losses(base: Sequence[Case], current: Sequence[Case]) -> str:
    sides = (("baseline", base), ("current", current))
    return "; ".join(f"{name}: {why}" for name, some in sides for why in _failures(some))


def _is_copy(name: str, *sides: Mapping[str, Sequence[Case]]) -> bool:
    """Whether the case is the reference copy's, which judges and is not judged."""
    return any(case.implementation == REFERENCE for side in sides for case in side.get(name, ()))


def _by_case(table: pd.DataFrame) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in cases(table):
        found.setdefault(case.case, []).append(case)
    return found


def _identity(base: Sequence[Run], current: Sequence[Run]) -> list[str]:
    """In which fields any two of the runs differ in device."""
    unknown = [
        f"device of {run.path} is unknown" for run in (*base, *current) if not run.environment
    ]
    lines = all_differences(
        environments([*base, *current]),
        lambda one, other: device_differences(one.device, other.device),
    )
    return [*unknown, *lines]


def _scales(runs: Sequence[Run]) -> dict[str, float]:
    """GB/s of the ceiling of each case: times multiplied by it are in units of the device."""
    rows: list[Achieved] = achieved(cases(frame(runs)))
    return {row.case: row.ceiling_gb_per_s for row in rows if row.ceiling_gb_per_s}


def _pair(
    name: str,
    base: Sequence[Case],
    current: Sequence[Case],
    scales: tuple[float | None, float | None],
) -> Pair:
    good, other = ([c for c in side if c.status == "ok"] for side in (base, current))
    if not (good and other):
        return _unmeasured(name, base, current, good, other)
    differing = _differing(good + other)
    if differing:
        return Pair(name, verdict="incomparable", reason=differing)
    for case in (*good, *other):
        doubt = sound(case)
        if doubt is not None and doubt.name in ("launch-bound", "timer-limited", "empty"):
            return Pair(name, verdict="incomparable", reason=f"{doubt.name}: {doubt.why}")
    if None in scales:
        return Pair(name, verdict="incomparable", reason="no measured ceiling at its read share")
    ours, theirs = (
        [seconds * (scale or 1.0) for case in side for seconds in case.medians.values()]
        for side, scale in zip((good, other), scales, strict=True)
    )
    tick = max((case.tick or 1e-9) for case in (*good, *other))
    tick *= max(scale or 1.0 for scale in scales)
    return Pair(name, ours, theirs, tick, any(case.throttled for case in (*good, *other)))


Copies = Mapping[tuple[str, str, int], float]
"""Seconds of the reference copy by run, cache state and process."""


def _copies(side: Mapping[str, Sequence[Case]]) -> dict[tuple[str, str, int], float]:
    return {
        (case.run, case.cache, process): seconds
        for some in side.values()
        for case in some
        if case.implementation == REFERENCE
        for process, seconds in case.medians.items()
    }


def _in_copies(
    pair: Pair, sides: tuple[Sequence[Case], Sequence[Case]], copies: tuple[Copies, Copies]
) -> Pair:
    """The pair in units of its processes' copies; as it is where one lacks that, or is cached."""
    if pair.verdict is not None or any(case.dram_sized is False for side in sides for case in side):
        return pair
    units: list[list[float]] = []
    scaled: list[list[float]] = []
    for side, known in zip(sides, copies, strict=True):
        keys = [(case.run, case.cache, process) for case in side for process in case.medians]
        if any(key not in known for key in keys):
            return pair
        seconds = [value for case in side for value in case.medians.values()]
        units.append([known[key] for key in keys])
        scaled.append([s / known[key] for s, key in zip(seconds, keys, strict=True)])
    tick = pair.tick / min(map(min, units))
    return replace(pair, base=scaled[0], current=scaled[1], tick=tick)


def _agreed(row: Compared, relative: Compared) -> Compared:
    """The row, ambiguous where the machine may have made its verdict."""
    changed = ("slower", "faster")
    contradicted = row.verdict == "same" and relative.verdict in changed
    unconfirmed = row.verdict in changed and relative.verdict != row.verdict
    if not (contradicted or unconfirmed):
        return row
    why = f"{row.reason}, but in units of the reference copy {relative.reason}"
    return replace(row, verdict="ambiguous", reason=why, remark=True)


def _noted(row: Compared, note: str | None) -> Compared:
    return replace(row, reason=f"{row.reason} ({note})", remark=True) if note else row


def _unmeasured(
    name: str,
    base: Sequence[Case],
    current: Sequence[Case],
    good: Sequence[Case],
    other: Sequence[Case],
) -> Pair:
    """A case that has no time on a side, with the reason."""

    def why(side: Sequence[Case], where: str) -> str:
        if not side:
            return f"not in the {where}"
        return f"{side[0].status} in the {where}: {side[0].reason}"

    lost, before = why(current, "current run"), why(base, "baseline")
    if good:
        return Pair(name, verdict="missing", reason=lost)
    if other:
        return Pair(name, verdict="new", reason=before)
    return Pair(name, verdict="incomparable" if base else "new", reason=f"{before}; {lost}")


def _differing(found: Sequence[Case]) -> str | None:
    for name in ("dtype", "shape", "bytes_read", "bytes_written", "cache", "timer"):
        values = list(dict.fromkeys(getattr(case, name) for case in found))
        if len(values) > 1:
            return f"{name} differs: {' and '.join(map(str, values))}"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison of two sides; the exit code is its conclusion."""
    from ..results.store import StoreError
    from .loading import read
    from .script import complain, conclude, parser, refuse, sides

    options = parser(__doc__)
    options.add_argument("base", help="run, folder of runs or glob")
    options.add_argument("current", help="run, folder of runs or glob")
    given = options.parse_args(arguments)
    try:
        base, current = sides(read([given.base]), read([given.current]))
    except StoreError as error:
        return refuse(error)
    code = conclude(compare(base, current), markdown=given.markdown)
    return complain([*base, *current]) or code


if __name__ == "__main__":
    raise SystemExit(main())
