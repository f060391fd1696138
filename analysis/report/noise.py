"""How much a run can be relied on: samples of its steadiest and shakiest case, drift, clocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from ...results.record import Record
from ..bandwidth import Achieved
from ..drift import REFERENCE, Drift
from ..figures.curves import Axis, Line, Spot, curves
from ..figures.figure import Figure
from ..tables import DASH, Table, number
from .bandwidths import headed, stems
from .section import Folded, Part, Section
from .told import Told, plural

MOST_SPOTS = 200
"""In a figure; more samples are thinned evenly."""


def noise(all_told: Sequence[Told]) -> Section:
    parts: list[Part] = []
    for told, stem in stems(all_told):
        known = [row for row in told.rows if row.spread is not None and row.median_seconds
                 and row.implementation != REFERENCE]  # fmt: skip
        by_case = _samples(told.run.records, _extremes(known))
        figures = [_samples_figure(kind, row, by_case[row.case], stem)
                   for kind, row in _extremes(known).items()]  # fmt: skip
        figures += [_drift_figure(drift, stem) for drift in told.moved if drift.courses]
        figures += _clocks(told.run.records, stem)
        if figures:
            parts += [*headed(all_told, told), *figures]
        if known:
            parts.append(Folded(_processes_table(known, told)))
    return Section("Noise", parts)


def _extremes(rows: Sequence[Achieved]) -> dict[str, Achieved]:
    if not rows:
        return {}
    steady = min(rows, key=lambda row: row.spread or 0.0)
    shaky = max(rows, key=lambda row: row.spread or 0.0)
    return {"steadiest": steady} | ({"shakiest": shaky} if shaky.case != steady.case else {})


def _samples(
    records: Iterable[Record], extremes: Mapping[str, Achieved]
) -> dict[str, dict[int, list[float]]]:
    found: dict[str, dict[int, list[float]]] = {row.case: {} for row in extremes.values()}
    for record in records:
        if record.case in found and record.status == "ok":
            found[record.case].setdefault(record.process, []).extend(record.seconds)
    return found


def _samples_figure(
    kind: str, row: Achieved, by_process: Mapping[int, Sequence[float]], stem: str
) -> Figure:
    middle = row.median_seconds or 1.0
    taken = sum(map(len, by_process.values()))
    spots = [
        Spot(at, seconds / middle, f"process {process}", f"process {process}, sample {at}: "
             f"{seconds * 1e6:,.1f} µs")
        for process, samples in by_process.items()
        for at, seconds in list(enumerate(samples))[:: _step(taken)]
    ]  # fmt: skip
    medians = [median(samples) / middle for samples in by_process.values()]
    return Figure(
        f"{stem}noise-{kind}",
        f"Samples of the {kind} case",
        f"{row.case}: {plural(taken, 'sample')} of "
        f"{plural(len(by_process), 'process', 'processes')}, as measured, in the "
        "order they were taken, over the case's time of "
        f"{number(middle * 1e6, 4)} µs.",
        f"The medians of its processes are {_between(medians)} of that.",
        lambda: curves(
            spots, Axis("sample"), Axis("time / median"), [Line("", y=1.0, dashed=True)], False
        ),
    )


def _between(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3f} to {high:.3f}" if high > low else f"{low:.3f}"


def _step(count: int) -> int:
    """Every how manieth is shown."""
    return max(1, -(-count // MOST_SPOTS))


def _drift_figure(drift: Drift, stem: str) -> Figure:
    spots = [
        Spot(position, 100 * logarithm, f"process {process}",
             f"process {process}, position {position}: {100 * logarithm:+.1f} %")
        for process, course in drift.courses.items()
        for position, logarithm in zip(course.positions, course.logarithms, strict=True)
    ]  # fmt: skip
    return Figure(
        f"{stem}drift-{drift.cache}",
        f"The reference copy over the run, {drift.cache}",
        "The driver's own copy, timed again after every group of cases: its speed against its mean "
        "over the process, by place in the process.",
        f"It moved {drift.line}.",
        lambda: curves(
            spots,
            Axis("place in the process"),
            Axis("% from the mean"),
            [Line("", y=0.0, dashed=True)],
        ),
    )


def _clocks(records: Iterable[Record], stem: str) -> list[Figure]:
    spots = [
        Spot(record.position, median(record.sm_clock_mhz), f"process {record.process}",
             f"{record.case}, process {record.process}: {median(record.sm_clock_mhz):,.0f} MHz")
        for record in records
        if record.sm_clock_mhz
    ]  # fmt: skip
    if not spots:
        return []
    clocks = [spot.y for spot in spots]
    throttled = sum(1 for record in records if record.throttled)
    most = max(clocks) * 1.05
    return [
        Figure(
            f"{stem}clocks",
            "Clocks",
            f"Median clock of the multiprocessors beside each of {plural(len(spots), 'record')}, "
            "by place in the process.",
            f"From {min(clocks):,.0f} to {max(clocks):,.0f} MHz; "
            f"{plural(throttled, 'record')} {'was' if throttled == 1 else 'were'} throttled.",
            lambda: curves(
                spots[:: _step(len(spots))], Axis("place in the process"),
                Axis("MHz", domain=(0.0, most)), (),
                False,
            ),
        )
    ]  # fmt: skip


def _processes_table(rows: Sequence[Achieved], told: Told) -> Table:
    """The shakiest cases, a column for each process."""
    shaky = sorted(rows, key=lambda row: -(row.spread or 0.0))[:20]
    medians = {case.case: case.medians for case in told.found}
    processes = sorted({process for row in shaky for process in medians[row.case]})
    cells = [
        [
            row.case,
            f"{row.spread or 0.0:.1%}",
            *(_rate(row, medians[row.case], p) for p in processes),
        ]
        for row in shaky
    ]
    columns = ["case", "spread", *(f"process {process}" for process in processes)]
    notes = ["GB/s of each process"]
    return Table("The cases that processes agree on least", columns, cells,
                 frozenset(columns[1:]), notes)  # fmt: skip


def _rate(row: Achieved, medians: Mapping[int, float], process: int) -> str:
    seconds = medians.get(process)
    return number(row.traffic_bytes / seconds / 1e9) if seconds else DASH
