"""The lines and tables every form of a report has: device, ceilings, what failed, warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...results.reading import Run
from ...results.record import Environment
from ..bandwidth import Achieved, run_ceilings
from ..cases import Case
from ..ceiling import Ceiling
from ..drift import Drift
from ..identity import disturbed
from ..tables import Table, number
from .told import Told, plural

BEYOND_CEILING = 105.0
"""Percent of a measured ceiling from which on it is the ceiling that is in doubt."""
FAILURES = ("wrong", "failed", "timeout", "skipped")
MEANING = {
    "below-ceiling": "under 80 % of the copies with its read share",
    "unjudged": "neither a copy with its read share nor a peak to hold it to",
    "launch-bound": "the launch takes a third of the time or more; not ranked",
    "timer-limited": "too short for the timer; not ranked",
    "cache-resident": "served by the cache, at least in part; not ranked",
    "above-peak": "faster than the memory: cache, wrong bytes or wrong peak; not ranked",
    "above-ceiling": "far faster than the copies, and no peak is known to allow it; not ranked",
    "unsized": "the cache is unknown, so it cannot be told from memory; not ranked",
    "placed": "not in the device's own memory, so held to none of its ceilings; not ranked",
    "throttled": "the device slowed itself down; not ranked",
    "unstable": "processes disagree by more than 10 %; not ranked",
    "empty": "no byte has to move",
}


def head(run: Run, found: Sequence[Case], moved: Sequence[Drift]) -> list[str]:
    """The device, its peak and ceilings, how the reference copy went, and the run."""
    environment = run.environment
    copy = [f"Reference copy, {drift.cache}: {drift.line}" for drift in moved]
    if environment is None:
        return ["Unknown device: environment.json cannot be read", f"Run {run.path}", *copy]
    lines = [_device(environment), f"Peak {_peak(environment)}"]
    lines += [
        f"Measured ceilings, {cache}: {_ceilings(points)}"
        for (_, cache), points in run_ceilings(found).items()
    ]
    if not any(line.startswith("Measured") for line in lines):
        lines.append("Measured ceilings: none; no copy larger than the cache was measured")
    lines += copy
    state = {True: ", uncommitted changes", False: "", None: ", changes unknown"}
    commit = environment.commit[:12] if environment.commit else "unknown"
    commit = f"commit {commit}{state[environment.dirty]}"
    started = environment.started_at[:16].replace("T", " ")
    lines.append(
        f"Run {run.path.resolve().name}, {started} UTC, preset {environment.preset}, "
        f"{environment.processes} processes, {commit}"
    )
    if environment.finished_at is None:
        lines.append("The run did not finish: go on with membound run --resume")
    return lines


def _device(environment: Environment) -> str:
    device = environment.device
    parts = [device.name]
    if device.mig and device.mig not in device.name:
        parts.append(f"MIG {device.mig}")
    if device.kind == "cpu" and device.multiprocessors:
        parts.append(f"{device.multiprocessors} cores")
    if device.memory_bytes:
        parts.append(f"{device.memory_bytes / 2**30:,.0f} GiB")
    parts.append(f"last-level cache {device.llc_bytes / 2**20:,.0f} MiB")
    if device.driver:
        parts.append(f"driver {device.driver}")
    return ", ".join(parts)


def _peak(environment: Environment) -> str:
    peak = environment.peak
    if peak is None:
        return f"unknown: {environment.peak_reason or 'no reason was recorded'}"
    return f"{number(peak.gbps, 4)} GB/s (from {peak.source}: {peak.provenance})"


def _ceilings(points: Sequence[Ceiling]) -> str:
    shown = (f"{number(point.gb_per_s)} GB/s at {point.share:.0%} reads" for point in points)
    return ", ".join(shown) or "none"


def judged(rows: Sequence[Achieved]) -> Table | None:
    """Every verdict that is neither good nor a failure, with its count and first reasons.

    Steps of kernel ladders are left out: what is before the default form is meant to fall short.
    """
    rows = [row for row in rows if not row.is_step]
    count = Counter(row.verdict for row in rows)
    cells = []
    for verdict, meaning in MEANING.items():
        some = [row for row in rows if row.verdict == verdict]
        if some:
            example = f"{some[0].case}: {some[0].why}"
            cells.append([verdict, str(count[verdict]), meaning, example])
    columns = ["verdict", "cases", "meaning", "such as"]
    return Table("What limits the rest", columns, cells, frozenset(["cases"])) if cells else None


def failures(rows: Sequence[Achieved]) -> Table | None:
    """Cases without a figure, those with the same reason together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.verdict in FAILURES:
            groups.setdefault((row.verdict, row.why), []).append(row.case)
    if not groups:
        return None
    ordered = sorted(groups.items(), key=lambda item: FAILURES.index(item[0][0]))
    cells = [
        [verdict, str(len(names)), why, ", ".join(names[:3]) + (" …" if names[3:] else "")]
        for (verdict, why), names in ordered
    ]
    columns = ["status", "cases", "reason", "which"]
    return Table("Not measured", columns, cells, frozenset(["cases"]))


def warnings(told: Told) -> list[str]:
    """What a reader has to know before believing the figures, one line each."""
    run = told.run
    lines = [*run.notes, *(drift.warning for drift in told.moved if drift.warning)]
    partly = [case for case in told.found if case.failed]
    if partly:
        lines.append(
            f"failed in some processes: {plural(len(partly), 'case')}, such as "
            f"{partly[0].case}: {partly[0].reason}"
        )
    beyond = [row for row in told.rows if (row.percent_of_ceiling or 0) > BEYOND_CEILING]
    if beyond:
        most = max(beyond, key=lambda row: row.percent_of_ceiling or 0)
        lines.append(
            f"faster than the copies with their read share: {plural(len(beyond), 'case')}, "
            f"{most.case} by {(most.percent_of_ceiling or 0) - 100:.0f} %; "
            "those ceilings were measured too low"
        )
    environment = run.environment
    if environment is not None:
        lines += environment.warnings + environment.quirks + disturbed(environment)
    return lines + [f"damaged: {problem}" for problem in run.problems]
