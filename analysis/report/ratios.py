"""Expected against measured: fusion, smaller types, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from ..bandwidth import Achieved
from ..figures.figure import Figure
from ..figures.scatter import Point, scatter
from ..fusion import Gain, own_chain
from ..tables import Table, fusion_tables, number, percent, plus_minus, short
from .answer import spread
from .bandwidths import headed, stems
from .section import Folded, Part, Section
from .told import Told, layers, plural

MOST_POINTS = 500
"""In a figure; of more every second, third, … is drawn, and all are in the table."""
_FALLS_SHORT = 0.9
"""Part of the predicted gain below which a gain is said to fall short."""


def fusion(all_told: Sequence[Told]) -> Section:
    """Predicted against measured gain, and the table with both."""
    parts: list[Part] = []
    for told, stem in stems(all_told):
        parts += headed(all_told, told)
        for assisted in (False, True):
            some = [gain for gain in told.gains if bool(gain.l2_assisted) == assisted]
            drawn = [gain for gain in own_chain(some) if gain.measured is not None]
            if drawn:
                parts.append(_fusion_figure(drawn, assisted, stem, told.forms))
        parts += fusion_tables(told.gains)
    return Section("Fused against unfused", parts)


def _fusion_figure(
    gains: Sequence[Gain], assisted: bool, stem: str, forms: Sequence[str]
) -> Figure:
    points = [
        Point(
            gain.predicted,
            gain.measured or 0.0,
            gain.fused,
            f"{gain.operation} {gain.direction} {gain.fused} {gain.dtype} {gain.shape} "
            f"{gain.cache}: predicted {number(gain.predicted)}x, measured {number(gain.measured)}x "
            f"{plus_minus(gain.low, gain.high)}",
            gain.low,
            gain.high,
            gain.direction,
        )
        for gain in gains
    ]
    kind = ", L2-assisted" if assisted else ""
    apart = (
        " Intermediates are under four caches in size: the chain may have read them back from there"
        " and not from memory, so these stand apart." if assisted else ""
    )  # fmt: skip
    return Figure(
        f"{stem}fusion-{'assisted' if assisted else 'memory'}",
        f"What fusing buys{kind}",
        "Predicted gain (bytes of the chain / bytes of the fused operation) and measured gain (time"
        f" of the chain / time of the fused kernel, same implementation, same processes) of "
        f"{plural(len(gains), 'comparison')}; on the dashed line they are equal, whiskers are 95 % "
        f"intervals.{apart}{_thinned(len(gains))}",
        _fusion_concluded(gains),
        lambda: scatter(_few(points), "predicted gain", "measured gain", True, forms),
    )


def _fusion_concluded(gains: Sequence[Gain]) -> str:
    pairs = [(gain.measured or 0.0, gain) for gain in gains]
    short_of = sum(measured < _FALLS_SHORT * gain.predicted for measured, gain in pairs)
    slower = sum(measured < 1 for measured, _ in pairs)
    least = min(pairs, key=lambda pair: pair[0] / pair[1].predicted)[1]
    return (
        f"Measured {number(median(m for m, _ in pairs))}x at the median, predicted "
        f"{number(median(g.predicted for _, g in pairs))}x; {short_of} of {len(pairs)} fall short "
        f"of the prediction by more than a tenth and {slower} are slower than the chain. Furthest "
        f"below the line: {least.operation} {least.direction} {least.fused}."
    )


@dataclass(frozen=True)
class Saving:
    """A smaller type beside float32: bytes and seconds of float32 / those of the type, per row.

    A row is one step of the first extent: shapes of one case grow along it to suit the type.
    """

    wide: Achieved
    narrow: Achieved
    predicted: float
    measured: float


def types(all_told: Sequence[Told]) -> Section:
    """What half, bfloat16, float8 and float4 save in bytes and in time."""
    parts: list[Part] = []
    for told, stem in stems(all_told):
        found = list(savings(told.rows))
        if not found:
            continue
        points = [
            Point(
                saving.predicted,
                saving.measured,
                short(saving.narrow.dtype),
                f"{saving.narrow.case}: bytes {number(saving.predicted)}x, "
                f"time {number(saving.measured)}x",
            )
            for saving in found
        ]
        parts += [
            *headed(all_told, told),
            Figure(
                f"{stem}types",
                "Smaller types: bytes saved and time saved",
                f"Bytes and time of float32 over those of the smaller type, per row, of "
                f"{plural(len(found), 'pair')} measured far beyond the caches; on the dashed line "
                f"time falls as bytes do.{_thinned(len(found))}",
                _types_concluded(found),
                partial(scatter, _few(points), "fewer bytes", "less time", ratio=True),
            ),
            Folded(_types_table(found)),
        ]
    return Section("Smaller types", parts)


def savings(rows: Sequence[Achieved]) -> Iterator[Saving]:
    """Each ranked case of a smaller type beside the float32 one of the same columns."""
    by_key: dict[tuple[str, ...], dict[str, Achieved]] = {}
    for row in rows:
        if row.ranked and row.median_seconds and _rows(row) and not row.is_step:
            key = (row.operation, row.direction, row.form, row.cache, _columns(row))
            sizes = by_key.setdefault(key, {})
            if row.dtype not in sizes or row.traffic_bytes > sizes[row.dtype].traffic_bytes:
                sizes[row.dtype] = row
    for sizes in by_key.values():
        wide = sizes.get("float32")
        for dtype, narrow in sizes.items():
            if wide is None or dtype == "float32":
                continue
            scale = _rows(narrow) / _rows(wide)
            yield Saving(
                wide,
                narrow,
                scale * wide.traffic_bytes / narrow.traffic_bytes,
                scale * (wide.median_seconds or 0.0) / (narrow.median_seconds or 1.0),
            )


def _rows(row: Achieved) -> int:
    first = row.shape.split("x")[0].split("-")[0]
    return int(first) if first.isdigit() else 0


def _columns(row: Achieved) -> str:
    return row.shape.partition("x")[2]


def _types_concluded(found: Sequence[Saving]) -> str:
    said = []
    for dtype in dict.fromkeys(saving.narrow.dtype for saving in found):
        some = [saving for saving in found if saving.narrow.dtype == dtype]
        said.append(
            f"{dtype} moves {number(median(s.predicted for s in some))} times fewer bytes and "
            f"takes {number(median(s.measured for s in some))} times less time at the median"
        )
    return "; ".join(said) + "."


def _types_table(found: Sequence[Saving]) -> Table:
    cells = [
        [s.narrow.operation, short(s.narrow.direction), s.narrow.form, short(s.narrow.dtype),
         s.narrow.shape, s.narrow.cache, f"{number(s.predicted)}x", f"{number(s.measured)}x"]
        for s in found
    ]  # fmt: skip
    columns = ["operation", "dir", "implementation", "type", "shape", "cache", "bytes", "time"]
    return Table("Against float32", columns, cells, frozenset(["bytes", "time"]))


def directions(all_told: Sequence[Told]) -> Section:
    """Forward against backward, each in percent of the ceiling of its own share of reads."""
    parts: list[Part] = []
    for told, stem in stems(all_told):
        pairs = list(_both_ways(told))
        if not pairs:
            continue
        points = [
            Point(
                min(forward.percent_of_ceiling or 0.0, 100.0),
                min(backward.percent_of_ceiling or 0.0, 100.0),
                forward.form,
                f"{forward.operation} {forward.form}: forward "
                f"{percent(forward.percent_of_ceiling)} %, backward "
                f"{percent(backward.percent_of_ceiling)} %",
            )
            for forward, backward in pairs
        ]
        parts += [
            *headed(all_told, told),
            Figure(
                f"{stem}directions",
                "Forward against backward",
                f"Percent of the measured ceiling, forward and backward, of "
                f"{plural(len(pairs), 'implementation')} of operations measured both ways; more "
                "than 100 % is drawn as 100 %, and on the dashed line both ways are alike."
                f"{_thinned(len(pairs))}",
                _directions_concluded(pairs),
                partial(
                    scatter,
                    _few(points),
                    "forward, % of ceiling",
                    "backward, % of ceiling",
                    False,
                    told.forms,
                ),
            ),
            Folded(_directions_table(pairs)),
        ]
    return Section("Forward against backward", parts)


def _both_ways(told: Told) -> Iterator[tuple[Achieved, Achieved]]:
    chosen = layers(told.rows)
    for (operation, direction), some in chosen.items():
        back = chosen.get((operation, "backward"))
        if direction != "forward" or back is None:
            continue
        by_form = {row.form: row for row in back if row.ranked and row.percent_of_ceiling}
        for row in some:
            if row.ranked and row.percent_of_ceiling and row.form in by_form:
                yield row, by_form[row.form]


def _directions_concluded(pairs: Sequence[tuple[Achieved, Achieved]]) -> str:
    forward, backward = ([pair[way].percent_of_ceiling or 0.0 for pair in pairs] for way in (0, 1))
    lower = sum(b < f for f, b in zip(forward, backward, strict=True))
    return (
        f"Forward reaches {spread(forward)}, backward {spread(backward)}; "
        f"backward is further from its ceiling in {lower} of {len(pairs)}."
    )


def _directions_table(pairs: Sequence[tuple[Achieved, Achieved]]) -> Table:
    cells = [
        [f.operation, f.form, short(f.dtype), number(f.gb_per_s), number(b.gb_per_s),
         percent(f.percent_of_ceiling), percent(b.percent_of_ceiling)]
        for f, b in pairs
    ]  # fmt: skip
    columns = ["operation", "implementation", "type", "fwd GB/s", "bwd GB/s", "fwd %", "bwd %"]
    return Table("Both ways", columns, cells, frozenset(columns[3:]))


def _few(points: Sequence[Point]) -> Sequence[Point]:
    return points[:: _step(len(points))]


def _step(count: int) -> int:
    return max(1, -(-count // MOST_POINTS))


def _thinned(count: int) -> str:
    """What is to be said of `count` points where not all are drawn."""
    step = _step(count)
    return f" One in {step} is drawn." if step > 1 else ""
