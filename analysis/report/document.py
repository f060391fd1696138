"""What a run says, in reading order: the device and its ceilings, then tables, then what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...results.checked import printable
from ...results.reading import Run, read_run
from ...results.record import Environment
from ..bandwidth import Achieved, achieved, run_ceilings
from ..cases import Case, cases
from ..ceiling import Ceiling
from ..drift import Drift, corrected, drifts
from ..fusion import gains
from ..loading import frame, read
from ..script import DAMAGED, rendered
from ..tables import (
    Table,
    bandwidth_tables,
    escaped,
    fusion_tables,
    number,
)

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
    "unsized": "the cache is unknown, so it cannot be told from memory; not ranked",
    "throttled": "the device slowed itself down; not ranked",
    "unstable": "processes disagree by more than 10 %; not ranked",
    "empty": "no byte has to move",
}


@dataclass(frozen=True)
class Report:
    """exit_code: 1 where a file of a run is damaged, else 0."""

    text: str
    exit_code: int


def report(paths: Iterable[str | Path], markdown: bool = False, color: bool = False) -> Report:
    """Everything about the runs that `paths` name. Raises StoreError where there is none."""
    runs = read(paths)
    parts = [_section(run, markdown, color, whole=True) for run in runs]
    damaged = any(run.problems for run in runs)
    return Report("\n".join(parts), DAMAGED if damaged else 0)


def run_table(path: str | Path, markdown: bool = False, color: bool = False) -> str:
    """Device, ceilings, bandwidth and what failed of one run: what is shown after measuring."""
    return _section(read_run(path), markdown, color, whole=False)


def _section(run: Run, markdown: bool, color: bool, whole: bool) -> str:
    table = frame([run])
    moved = drifts(table)
    found = cases(corrected(table, moved))
    rows = achieved(found)
    tables = bandwidth_tables(rows, moved)
    # Fused and unfused are neighbours in a process: their ratio has no drift to take out.
    fused = gains(cases(table))
    if fused or whole:
        tables += fusion_tables(fused)
    last = (_judged(rows), _failures(rows), _warnings(run, rows, moved))
    tables += [table for table in last if table]
    lines = _head(run, found, moved)
    head = _markdown_head(lines) if markdown else "\n".join(map(printable, lines)) + "\n"
    return head + "\n" + rendered(tables, markdown, color)


def _markdown_head(lines: Sequence[str]) -> str:
    first, *rest = map(escaped, lines)
    return "\n".join([f"## {first}", "", *(f"- {line}" for line in rest)]) + "\n"


def _head(run: Run, found: Sequence[Case], moved: Sequence[Drift]) -> list[str]:
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
    if device.mig:
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


def _judged(rows: Sequence[Achieved]) -> Table | None:
    """Every verdict that is neither good nor a failure, with its count and first reasons."""
    count = Counter(row.verdict for row in rows)
    cells = []
    for verdict, meaning in MEANING.items():
        some = [row for row in rows if row.verdict == verdict]
        if some:
            example = f"{some[0].case}: {some[0].why}"
            cells.append([verdict, str(count[verdict]), meaning, example])
    columns = ["verdict", "cases", "meaning", "such as"]
    return Table("What limits the rest", columns, cells, frozenset(["cases"])) if cells else None


def _failures(rows: Sequence[Achieved]) -> Table | None:
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


def _warnings(run: Run, rows: Sequence[Achieved], moved: Sequence[Drift]) -> Table | None:
    lines = [*run.notes, *(drift.warning for drift in moved if drift.warning)]
    beyond = [row for row in rows if (row.percent_of_ceiling or 0) > BEYOND_CEILING]
    if beyond:
        most = max(beyond, key=lambda row: row.percent_of_ceiling or 0)
        lines.append(
            f"{len(beyond)} cases are faster than the copies with their read share, "
            f"{most.case} by {(most.percent_of_ceiling or 0) - 100:.0f} %: "
            "those ceilings were measured too low"
        )
    environment = run.environment
    if environment is not None:
        lines += environment.warnings + environment.quirks
        for when, names in (
            ("before", environment.processes_before),
            ("after", environment.processes_after),
        ):
            if names:
                lines.append(f"other compute processes {when} the run: {', '.join(names)}")
    lines += [f"damaged: {problem}" for problem in run.problems]
    return Table("Warnings", [], [], notes=lines) if lines else None
