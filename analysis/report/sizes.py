"""Bandwidth against size, from what fits the cache to far beyond it; arithmetic per byte."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..bandwidth import Achieved
from ..drift import REFERENCE
from ..figures.curves import Axis, Line, Spot, curves
from ..figures.figure import Figure
from ..tables import Table, number, short, size
from .bandwidths import headed, stems
from .section import Folded, Part, Section
from .told import DOUBTFUL, SHOWN, Told, plural

FEWEST_SIZES = 3
MOST_SWEEPS = 6
_CACHED = ("cache-resident", "above-peak", "above-ceiling")
_MEASURED = (*SHOWN, *DOUBTFUL, *_CACHED, "launch-bound")
"""A sweep is about the cache: here its figures belong."""


def sweeps(all_told: Sequence[Told]) -> Section:
    """One figure for each of the layers measured at the most sizes, in forms that were swept."""
    parts: list[Part] = []
    for told, stem in stems(all_told):
        swept = _swept(told.rows)
        if not swept:
            continue
        parts += headed(all_told, told)
        shown = sorted(swept, key=lambda some: -len(_sizes(some)))[:MOST_SWEEPS]
        for number_, some in enumerate(shown, 1):
            parts.append(_sweep(told, some, f"{stem}sizes-{number_}"))
        if len(swept) > len(shown):
            parts.append(
                f"{plural(len(swept) - len(shown), 'more layer')} with fewer sizes: in the table."
            )
        parts.append(Folded(_sweep_table([row for some in swept for row in some])))
    return Section("Bandwidth against size", parts)


def _swept(rows: Sequence[Achieved]) -> list[list[Achieved]]:
    groups: dict[tuple[str, str, str], list[Achieved]] = {}
    for row in rows:
        known = row.gb_per_s is not None and row.verdict in _MEASURED
        if known and row.implementation != REFERENCE and not row.variant:
            groups.setdefault((row.operation, row.direction, row.dtype), []).append(row)
    swept = [
        [row for row in some if len(_sizes(r for r in some if r.form == row.form)) >= FEWEST_SIZES]
        for some in groups.values()
    ]
    return [some for some in swept if some]


def _sizes(rows: Iterable[Achieved]) -> set[int]:
    return {row.traffic_bytes for row in rows}


def _sweep(told: Told, rows: Sequence[Achieved], name: str) -> Figure:
    first = rows[0]
    spots = [
        Spot(
            row.traffic_bytes,
            row.gb_per_s or 0.0,
            row.form,
            f"{row.case}: {size(row.traffic_bytes)}, {number(row.gb_per_s)} GB/s, {row.verdict}",
            row.cache,
        )
        for row in rows
    ]
    device = told.environment.device if told.environment else None
    caches = [
        Line(f"{label} {bytes_ / 2**20:,.0f} MiB", x=float(bytes_), dashed=True)
        for label, bytes_ in (
            ("L2", device.l2_bytes if device else None),
            ("last-level cache", device.llc_bytes if device else None),
        )
        if bytes_ and (label != "L2" or device is None or bytes_ < device.llc_bytes)
    ]
    lines = [*caches]
    if first.peak_gb_per_s:
        lines.append(Line("peak", y=first.peak_gb_per_s, dashed=True))
    most = max([spot.y for spot in spots] + [line.y for line in lines if line.y])
    inside = [row for row in rows if row.verdict in _CACHED]
    what = f"{first.operation} {first.direction}, {short(first.dtype)}"
    return Figure(
        name,
        f"Bandwidth against size: {what}",
        f"GB/s over the bytes that must move, {plural(len(rows), 'case')} at "
        f"{plural(len(_sizes(rows)), 'size')}; vertical lines are the caches.",
        _sweep_concluded(rows, inside),
        lambda: curves(
            spots,
            Axis("bytes that must move", "log", "B"),
            Axis("GB/s", domain=(0.0, most * 1.08)),
            lines,
            names=told.forms,
        ),
    )


def _sweep_concluded(rows: Sequence[Achieved], inside: Sequence[Achieved]) -> str:
    beyond = [row for row in rows if row.ranked]
    said = []
    if inside:
        top = max(inside, key=lambda row: row.gb_per_s or 0.0)
        said.append(
            f"{plural(len(inside), 'case')} {'is' if len(inside) == 1 else 'are'} served by the "
            f"cache, up to {number(top.gb_per_s)} GB/s: that is no bandwidth of the memory"
        )
    if beyond:
        top = max(beyond, key=lambda row: row.traffic_bytes)
        said.append(f"at {size(top.traffic_bytes)} {top.form} moves {number(top.gb_per_s)} GB/s")
    else:
        said.append("no size here is far enough beyond the cache to be ranked")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _sweep_table(rows: Sequence[Achieved]) -> Table:
    ordered = sorted(rows, key=lambda row: (row.operation, row.direction, row.form, row.cache,
                                            row.dtype, row.traffic_bytes))  # fmt: skip
    cells = [
        [row.operation, short(row.direction), row.form, short(row.dtype), row.cache, row.shape,
         size(row.traffic_bytes), number(row.gb_per_s), row.verdict]
        for row in ordered
    ]  # fmt: skip
    columns = ["operation", "dir", "implementation", "type", "cache", "shape", "bytes", "GB/s"]
    return Table("Sizes", [*columns, "verdict"], cells, frozenset(["bytes", "GB/s"]))


def roofline(all_told: Sequence[Told]) -> Section:
    """Arithmetic against arithmetic per byte, where operations state how much they compute."""
    parts: list[Part] = []
    for told, stem in stems(all_told):
        rows = [
            row
            for row in told.rows
            if row.flops and row.gb_per_s and row.verdict in SHOWN and not row.variant
        ]
        if not rows:
            continue
        parts += [
            *headed(all_told, told),
            _roofline(rows, stem, told.forms),
            Folded(_roofline_table(rows)),
        ]
    return Section("Roofline", parts)


def _intensity(row: Achieved) -> float:
    return (row.flops or 0) / row.traffic_bytes


def _roofline(rows: Sequence[Achieved], stem: str, forms: Sequence[str]) -> Figure:
    spots = [
        Spot(
            _intensity(row),
            _intensity(row) * (row.gb_per_s or 0.0),
            row.form,
            f"{row.case}: {number(_intensity(row))} operations a byte, {number(row.gb_per_s)} GB/s",
        )
        for row in rows
    ]
    ceiling = max((row.ceiling_gb_per_s for row in rows if row.ceiling_gb_per_s), default=None)
    peak = next((row.peak_gb_per_s for row in rows if row.peak_gb_per_s), None)
    roofs = [
        Line(name, slope=slope, dashed=dashed)
        for name, slope, dashed in (("measured", ceiling, False), ("peak", peak, True))
        if slope
    ]
    intensities = [spot.x for spot in spots]
    across = min(intensities) / 2, max(intensities) * 2
    up = (
        min(s.y for s in spots) / 2,
        max([s.y for s in spots] + [(roof.slope or 0.0) * across[1] for roof in roofs]) * 1.3,
    )
    said = " to ".join(dict.fromkeys((number(min(intensities)), number(max(intensities)))))
    named = " and ".join(roof.name for roof in roofs) or "no roof is known"
    part = "" if ceiling is None else (
        f" The nearest to the measured roof reaches "
        f"{min(max((row.gb_per_s or 0) / ceiling for row in rows), 1.0):.0%} of it."
    )  # fmt: skip
    return Figure(
        f"{stem}roofline",
        "Roofline",
        f"Billions of arithmetic operations a second over operations per byte, of "
        f"{plural(len(rows), 'case')} that state their arithmetic; roofs of memory: {named}.",
        f"They compute {said} operations a byte.{part}",
        lambda: curves(
            spots,
            Axis("operations per byte", "log", domain=across),
            Axis("1e9 operations per second", "log", domain=up),
            roofs,
            joined=False,
            names=forms,
        ),
    )


def _roofline_table(rows: Sequence[Achieved]) -> Table:
    cells = [
        [row.operation, short(row.direction), row.form, short(row.dtype), row.shape,
         number(_intensity(row)), number(_intensity(row) * (row.gb_per_s or 0.0)),
         number(row.gb_per_s)]
        for row in rows
    ]  # fmt: skip
    columns = ["operation", "dir", "implementation", "type", "shape", "operations/byte"]
    columns += ["1e9 operations/s", "GB/s"]
    return Table("Arithmetic", columns, cells, frozenset(columns[5:]))
