"""Achieved bandwidth as bars: every layer, devices side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import TypeVar

from ..bandwidth import Achieved
from ..figures.bars import Bar, bars
from ..figures.figure import Figure
from ..tables import DASH, Table, number, percent, plus_minus, short
from ..verdict import MEMORY_SHARE
from .answer import spread
from .section import Folded, Heading, Part, Section
from .told import DOUBTFUL, SHOWN, Told, best, counted, layers, plural

Row = TypeVar("Row")

MOST_BARS = 48
"""More are spread over several figures."""
MOST_FIGURES = 12
"""Of bandwidths, and half as many of another kind: what is beyond stands in the tables alone."""


def bar(row: Achieved, group: str, label: str) -> Bar:
    """A case as a bar, or as a hole with its reason where it has no bandwidth of the memory."""
    tip = f"{row.case}: {row.verdict}, {row.why}"
    if row.gb_per_s is None or row.verdict not in (*SHOWN, *DOUBTFUL):
        return Bar(group, label, None, tip, said=f"{row.verdict}: {row.why}")
    share = row.percent_of_ceiling if row.percent_of_ceiling is not None else row.percent_of_peak
    return Bar(
        group,
        label,
        row.gb_per_s,
        f"{row.case}: {number(row.gb_per_s)} GB/s "
        f"{plus_minus(row.low_gb_per_s, row.high_gb_per_s)}, "
        f"{percent(row.percent_of_ceiling)} % of the ceiling, "
        f"{percent(row.percent_of_peak)} % of the peak; {row.verdict}",
        row.low_gb_per_s,
        row.high_gb_per_s,
        row.ceiling_gb_per_s,
        beside=DASH if share is None else f"{percent(share)} %",
        pale=row.verdict in DOUBTFUL,
    )


def bandwidth_figures(told: Told, stem: str, most: int) -> list[Part]:
    """Implementations of every layer, at one site each, over `most` figures at most."""
    parts = list(packed([some for some in layers(told.rows).values() if some]))
    drawn: list[Part] = [
        _bandwidth_figure(some, f"{stem}bandwidth-{number_}", _of(number_, len(parts)), told.forms)
        for number_, some in enumerate(parts[:most], 1)
    ]
    left = sum(map(len, parts[most:]))
    return [*drawn, f"{plural(left, 'more layer')}: in the table below."] if left else drawn


def _of(part: int, parts: int) -> str:
    return "" if parts == 1 else f" ({part} of {parts})"


def packed(groups: Sequence[Sequence[Row]]) -> Iterator[list[Sequence[Row]]]:
    """Groups that go into one figure."""
    page: list[Sequence[Row]] = []
    for group in groups:
        if page and sum(map(len, page)) + len(group) > MOST_BARS:
            yield page
            page = []
        page.append(group)
    if page:
        yield page


def _bandwidth_figure(
    groups: Sequence[Sequence[Achieved]], name: str, part: str, forms: Sequence[str]
) -> Figure:
    rows = [row for group in groups for row in group]
    peak = next((row.peak_gb_per_s for row in rows if row.peak_gb_per_s), None)
    families = dict.fromkeys(row.family for row in rows)
    drawn = [
        bar(row, f"{row.operation} {short(row.direction)}  {site(group[0])}", row.form)
        for group in groups
        for row in group
    ]
    line = f"the dashed line is the peak, {number(peak, 4)} GB/s" if peak else "the peak is unknown"
    return Figure(
        name,
        f"Achieved bandwidth{part}: {', '.join(families)}",
        f"GB/s of {plural(len(rows), 'case')} of {plural(len(groups), 'layer')}, each layer where "
        "its data are far beyond the caches; whiskers are 95 % intervals over processes, the tick "
        f"is what copies reached with the same share of reads, the figure beside a bar its percent "
        f"of that, pale bars are unstable, and {line}.",
        _concluded(groups),
        lambda: bars(drawn, "GB/s (1e9 bytes per second)", peak, "peak", forms),
    )


def site(row: Achieved) -> str:
    """Where a layer was measured: `bf16 8192x4096 cold`."""
    return f"{short(row.dtype)} {row.shape} {row.cache}"


def _concluded(groups: Sequence[Sequence[Achieved]]) -> str:
    tops = [top for top in map(best, groups) if top is not None]
    shares = [row.percent_of_ceiling for row in tops if row.percent_of_ceiling is not None]
    holes = [r.verdict for some in groups for r in some if r.verdict not in (*SHOWN, *DOUBTFUL)]
    gaps = f" {plural(len(holes), 'hole')}: {counted(holes)}." if holes else ""
    if not shares:
        return f"No layer here was measured beside a ceiling of its own.{gaps}"
    near = sum(share >= 100 * MEMORY_SHARE for share in shares)
    return (
        f"The fastest implementations reach {spread(shares)} of the measured ceiling; "
        f"{near} of {plural(len(groups), 'layer')} reach {100 * MEMORY_SHARE:.0f} % of it.{gaps}"
    )


def devices(all_told: Sequence[Told]) -> Section:
    """The same layers on each device: absolute, and in percent of what each could do."""
    title = "Devices side by side"
    if len(all_told) < 2:
        return Section(title, [])
    tops = [
        {key: top for key, some in layers(told.rows).items() if (top := best(some)) is not None}
        for told in all_told
    ]
    keys = [key for key in dict.fromkeys(key for some in tops for key in some)
            if sum(key in some for some in tops) > 1]  # fmt: skip
    if not keys:
        return Section(title, ["No layer has a ranked figure in two of these runs."])
    peaks = all(row.percent_of_peak is not None for some in tops for row in some.values())
    what = "peak" if peaks else "measured ceiling"
    pages = [keys[start : start + MOST_BARS // len(tops)]
             for start in range(0, len(keys), max(1, MOST_BARS // len(tops)))]  # fmt: skip
    parts: list[Part] = []
    for page, some_keys in enumerate(pages[: MOST_FIGURES // 2], 1):
        part = _of(page, len(pages))
        parts.append(_absolute(all_told, tops, some_keys, page, part))
        parts.append(_relative(all_told, tops, some_keys, page, part, peaks))
    parts.append(Folded(_device_table(all_told, tops, keys, what, peaks)))
    return Section(title, parts)


_Tops = Sequence[dict[tuple[str, str], Achieved]]


def _paired(all_told: Sequence[Told], tops: _Tops, keys: Sequence[tuple[str, str]]) -> list[Bar]:
    return [
        bar(some[key], f"{key[0]} {short(key[1])}", told.name)
        if key in some
        else Bar(f"{key[0]} {short(key[1])}", told.name, None, told.name, said="no ranked figure")
        for key in keys
        for told, some in zip(all_told, tops, strict=True)
    ]


def _absolute(
    all_told: Sequence[Told], tops: _Tops, keys: Sequence[tuple[str, str]], page: int, part: str
) -> Figure:
    drawn = [replace(one, beside="") for one in _paired(all_told, tops, keys)]
    middles = {
        told.name: median(rates)
        for told, some in zip(all_told, tops, strict=True)
        if (rates := [some[key].gb_per_s or 0.0 for key in keys if key in some])
    }
    fastest = max(middles, key=middles.__getitem__)
    return Figure(
        f"devices-absolute-{page}",
        f"Devices in GB/s{part}",
        f"GB/s of the fastest implementation of {plural(len(keys), 'layer')} on each of "
        f"{len(all_told)} devices, at a size that suits each; ticks are what copies reach there.",
        f"At the median of these layers {fastest} is fastest: {number(middles[fastest])} GB/s.",
        lambda: bars(drawn, "GB/s (1e9 bytes per second)"),
    )


def _relative(
    all_told: Sequence[Told],
    tops: _Tops,
    keys: Sequence[tuple[str, str]],
    page: int,
    part: str,
    peaks: bool,
) -> Figure:
    shares = {
        told.name: [
            share for key in keys if key in some and (share := _share(some[key], peaks)) is not None
        ]
        for told, some in zip(all_told, tops, strict=True)
    }
    drawn = []
    for one, row in zip(
        _paired(all_told, tops, keys),
        [some.get(key) for key in keys for some in tops],
        strict=True,
    ):
        share = None if row is None else _share(row, peaks)
        said = one.said if row is None else "nothing to hold it to"
        drawn.append(
            replace(one, value=None if share is None else min(share, 100.0), low=None, high=None,
                    limit=None, said=said, beside="" if share is None else f"{percent(share)} %")
        )  # fmt: skip
    of = "own peak" if peaks else "own measured ceiling (not every peak is known)"
    middles = {name: median(some) for name, some in shares.items() if some}
    told_middles = ", ".join(f"{name} {percent(value)} %" for name, value in middles.items())
    return Figure(
        f"devices-relative-{page}",
        f"Devices in percent of their own{part}",
        f"The same layers in percent of each device's {of}; more than 100 % is drawn as 100 %.",
        f"Medians: {told_middles or 'unknown'}.",
        lambda: bars(drawn, f"% of its {of}", 100.0),
    )


def _share(row: Achieved, peaks: bool) -> float | None:
    return row.percent_of_peak if peaks else row.percent_of_ceiling


def _device_table(
    all_told: Sequence[Told],
    tops: _Tops,
    keys: Sequence[tuple[str, str]],
    what: str,
    peaks: bool,
) -> Table:
    cells = [
        [key[0], short(key[1]), told.name, row.form, short(row.dtype), row.shape,
         number(row.gb_per_s), percent(_share(row, peaks))]
        for key in keys
        for told, some in zip(all_told, tops, strict=True)
        if (row := some.get(key)) is not None
    ]  # fmt: skip
    columns = ["operation", "dir", "device", "implementation", "type", "shape", "GB/s", f"% {what}"]
    return Table("Devices", columns, cells, frozenset(["GB/s", f"% {what}"]))


def stems(all_told: Sequence[Told]) -> Iterator[tuple[Told, str]]:
    """Each run with what the names of its figures begin with: nothing where it is alone."""
    for number_, told in enumerate(all_told, 1):
        yield told, "" if len(all_told) == 1 else f"run{number_}-"


def headed(all_told: Sequence[Told], told: Told) -> list[Part]:
    return [Heading(told.name)] if len(all_told) > 1 else []
