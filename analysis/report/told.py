"""One run with everything the sections of a report draw on, computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ...results.reading import Run
from ...results.record import Environment
from ..bandwidth import Achieved, achieved
from ..cases import Case, cases
from ..drift import REFERENCE as COPY
from ..drift import Drift, corrected, drifts
from ..fusion import Gain, gains
from ..loading import frame
from ..verdict import RANKED

SHOWN = (*RANKED, "unjudged")
"""Verdicts whose bandwidth is drawn as it is."""
DOUBTFUL = ("unstable", "throttled")
"""Verdicts whose bandwidth is the memory's, but not to be relied on: drawn pale."""


@dataclass(frozen=True)
class Told:
    """name: what tells this run from the others in the report."""

    run: Run
    name: str
    found: Sequence[Case] = field(repr=False)
    rows: Sequence[Achieved] = field(repr=False)
    moved: Sequence[Drift] = field(repr=False)
    gains: Sequence[Gain] = field(repr=False)

    @property
    def forms(self) -> list[str]:
        """Every implementation, plain forms first: the order in which they get colours."""
        found = {(row.variant != "", row.form) for row in self.rows if row.implementation != COPY}
        return [form for _, form in sorted(found)]

    @property
    def environment(self) -> Environment | None:
        return self.run.environment


def tell(runs: Sequence[Run]) -> list[Told]:
    """Every run by itself: tables of several runs would mix their ceilings."""
    return [_told(run, name) for run, name in zip(runs, _names(runs), strict=True)]


def _told(run: Run, name: str) -> Told:
    table = frame([run])
    moved = drifts(table)
    measured = cases(table)
    applied = any(drift.applied for drift in moved)
    found = cases(corrected(table, moved)) if applied else measured
    # Fused and unfused are neighbours in a process: their ratio has no drift to take out.
    return Told(run, name, found, achieved(found), moved, gains(measured))


def _names(runs: Sequence[Run]) -> list[str]:
    """The device, with the run's folder where that is not enough."""
    devices = [run.environment.device.name if run.environment else "unknown" for run in runs]
    several = Counter(devices)
    return [
        device if several[device] == 1 else f"{device}, {run.path.resolve().name}"
        for device, run in zip(devices, runs, strict=True)
    ]


def layers(
    rows: Iterable[Achieved], wanted: Callable[[Achieved], bool] = lambda row: not row.variant
) -> dict[tuple[str, str], list[Achieved]]:
    """Each operation and direction at one site, of those its rows were measured at.

    A site is cache state, dtype and shape: the one where most of them have a figure of the memory,
    then the dtype that most of the run is in, then the largest. Within it the fastest first; what
    has no figure anywhere comes last, wherever it was tried.
    """
    kept = [row for row in rows if wanted(row) and row.implementation != COPY]
    kept = [row for row in kept if row.placement == "device"]
    common = Counter(row.dtype for row in kept)
    by_layer: dict[tuple[str, str], dict[tuple[str, str, str], list[Achieved]]] = {}
    for row in kept:
        sites = by_layer.setdefault((row.operation, row.direction), {})
        sites.setdefault((row.cache, row.dtype, row.shape), []).append(row)

    def worth(item: tuple[tuple[str, str, str], list[Achieved]]) -> tuple[int, int, bool, int]:
        (cache, dtype, _), some = item
        figures = sum(row.verdict in SHOWN or row.verdict in DOUBTFUL for row in some)
        return figures, common[dtype], cache == "cold", some[0].traffic_bytes

    ordered = sorted(by_layer.items(), key=lambda item: _family_first(item[1]))
    return {
        key: _fast_first([*(there := max(sites.items(), key=worth)[1]), *_holes(sites, there)])
        for key, sites in ordered
    }


def _holes(
    sites: dict[tuple[str, str, str], list[Achieved]], there: Sequence[Achieved]
) -> list[Achieved]:
    """One case of each form that has no figure at any site and was not tried at this one."""
    rows = [row for some in sites.values() for row in some]
    known = {row.form for row in there} | {row.form for row in rows if row.gb_per_s is not None}
    return list({row.form: row for row in rows if row.form not in known}.values())


def _family_first(sites: dict[tuple[str, str, str], list[Achieved]]) -> bool:
    return next(iter(sites.values()))[0].family != "copy"


def _fast_first(some: Iterable[Achieved]) -> list[Achieved]:
    return sorted(some, key=lambda row: (row.gb_per_s is None, -(row.gb_per_s or 0)))


def best(rows: Sequence[Achieved]) -> Achieved | None:
    """The fastest; None where there is none, or where it may be one whose figure is in doubt."""
    known = [row for row in rows if row.gb_per_s and (row.ranked or row.verdict in DOUBTFUL)]
    top = max(known, key=lambda row: row.gb_per_s or 0, default=None)
    return top if top is not None and top.ranked else None


def plural(count: int, one: str, many: str | None = None) -> str:
    """`1 layer`, `3 layers`, `no layer`."""
    if count == 0:
        return f"no {one}"
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def counted(names: Iterable[str]) -> str:
    """`3 skipped, 1 wrong`, the most first."""
    return ", ".join(f"{count:,} {name}" for name, count in Counter(names).most_common())
