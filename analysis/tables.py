"""Tables as people read them: text for a terminal, Markdown for a page. A dash is unknown."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..results.checked import printable
from .bandwidth import Achieved
from .compare import Comparison
from .drift import Drift
from .fusion import Gain
from .judge import Compared

DASH = "–"
WIDTH = 100

_SHORT = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "forward": "fwd",
    "backward": "bwd",
}
BOLD, RED, GREEN, YELLOW = "1", "31", "32", "33"
_STYLES = {
    "memory-bound": GREEN,
    "faster": GREEN,
    "same": GREEN,
    "below-ceiling": YELLOW,
    "slower": RED,
    "wrong": RED,
    "failed": RED,
    "timeout": RED,
    "missing": RED,
}
"""ANSI colours of verdicts on a terminal."""


@dataclass(frozen=True)
class Table:
    """Cells of text. `right`: names of columns that hold numbers. `notes`: lines underneath."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str] = frozenset()
    notes: Sequence[str] = field(default_factory=list)


def as_text(table: Table, width: int = WIDTH, color: bool = False) -> str:
    """Aligned text; cells too long for `width` wrap. Nothing in a cell is interpreted."""
    lines = [_styled(printable(table.title), BOLD, color)] if table.title else []
    if table.rows:
        rows = [[printable(cell) for cell in row] for row in (table.columns, *table.rows)]
        widths = _widths(rows, [name in table.right for name in table.columns], width)
        for number, row in enumerate(rows):
            lines += _wrapped(row, widths, table, BOLD if number == 0 else None, color)
    lines += [printable(note) for note in table.notes]
    return "\n".join(lines) + "\n"


def _widths(rows: Sequence[Sequence[str]], numeric: Sequence[bool], width: int) -> list[int]:
    """Widths of columns that fit together: the widest column of words gives way first."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    least = max(map(len, rows[0]))
    while sum(widths) + len(widths) - 1 > width:
        words = [i for i, wide in enumerate(widths) if not numeric[i] and wide > least]
        if not words:
            break
        widths[max(words, key=widths.__getitem__)] -= 1
    return widths


def _wrapped(
    row: Sequence[str], widths: Sequence[int], table: Table, style: str | None, color: bool
) -> list[str]:
    """One row as as many lines as its longest cell needs; numbers to the right."""
    cells = [
        [cell] if len(cell) <= wide else textwrap.wrap(cell, wide)
        for cell, wide in zip(row, widths, strict=True)
    ]
    lines = []
    for number in range(max(map(len, cells))):
        parts = []
        for name, whole, pieces, wide in zip(table.columns, row, cells, widths, strict=True):
            piece = pieces[number] if number < len(pieces) else ""
            placed = piece.rjust(wide) if name in table.right else piece.ljust(wide)
            parts.append(_styled(placed, style or _STYLES.get(whole), color))
        lines.append(" ".join(parts).rstrip())
    return lines


def _styled(text: str, style: str | None, color: bool) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if color and style else text


def as_markdown(table: Table) -> str:
    """A Markdown table; whatever Markdown or HTML would interpret in a cell is escaped."""
    lines = [f"### {escaped(table.title)}", ""] if table.title else []
    if table.rows:
        lines.append("| " + " | ".join(map(escaped, table.columns)) + " |")
        rules = ("--:" if name in table.right else ":--" for name in table.columns)
        lines.append("|" + "|".join(rules) + "|")
        lines += ["| " + " | ".join(map(escaped, row)) + " |" for row in table.rows]
    for note in table.notes:
        lines += ["", escaped(note)]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*|\[\]~#$])|(?<!\w)_|_(?!\w)", lambda found: "\\" + found[0], text)


def number(value: float | None, digits: int = 3) -> str:
    """A figure with about `digits` significant digits, thousands set apart; a dash for unknown."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def percent(value: float | None) -> str:
    """A share in percent; beyond 100 is no achievement and not shown as one."""
    if value is None or not math.isfinite(value):
        return DASH
    return "≥100" if value > 100.5 else f"{value:.0f}"


def plus_minus(low: float | None, high: float | None) -> str:
    """Half the width of an interval of a ratio scale, relative; a dash where it is unknown."""
    if low is None or high is None or not (low > 0 and math.isfinite(high)):
        return DASH
    half = 100 * (math.sqrt(high / low) - 1)
    return f"±{half:.1f}%" if half >= 0.05 else "<0.1%"


def size(count: float | None) -> str:
    """Bytes in powers of 1000, like the bandwidth they go into."""
    if count is None or not math.isfinite(count):
        return DASH
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{number(count)} {unit}"


def short(word: str) -> str:
    """The usual abbreviation of a dtype or direction."""
    return _SHORT.get(word, word)


def bandwidth_tables(rows: Sequence[Achieved], drifts: Sequence[Drift] = ()) -> list[Table]:
    """One table per run, cache state and placement, copies first, then operations as measured.

    drifts: those that were applied to the figures are said below them.
    """
    applied = {(drift.run, drift.cache): drift.why for drift in drifts if drift.applied}
    several = len({row.run for row in rows}) > 1
    columns = ["operation", "dir", "implementation", "type", "shape", "bytes", "GB/s", "±"]
    columns += ["%peak", "%ceil", "verdict"]
    right = frozenset(["bytes", "GB/s", "±", "%peak", "%ceil"])
    groups: dict[tuple[str, str, str], list[Achieved]] = {}
    for row in rows:
        groups.setdefault((row.run, row.cache, row.placement), []).append(row)
    tables = []
    for (run, cache, placement), group in groups.items():
        where = "" if placement == "device" else f", in {placement} memory"
        title = f"Achieved bandwidth, {cache}{where}" + (f", {run}" if several else "")
        notes = []
        if any(row.allocates for row in group):
            notes.append("* allocates its outputs inside the clock")
        if any(row.in_place for row in group):
            notes.append("† writes over its inputs, restored outside the clock")
        if any(row.gb_per_s is not None and row.low_gb_per_s is None for row in group):
            notes.append("± needs three processes")
        if placement == "device" and (run, cache) in applied:
            notes.append(applied[run, cache])
        cells = [_bandwidth_row(row) for row in _sorted(group)]
        tables.append(Table(title, columns, cells, right, notes))
    return tables


def _sorted(rows: Sequence[Achieved]) -> list[Achieved]:
    """Large shapes before small, fast before slow, what has no figure last."""
    order = {name: i for i, name in enumerate(dict.fromkeys(row.operation for row in rows))}
    return sorted(
        rows,
        key=lambda row: (
            row.family != "copy",
            order[row.operation],
            row.direction != "forward",
            row.dtype,
            -row.traffic_bytes,
            row.shape,
            -(row.gb_per_s or 0),
        ),
    )


def _bandwidth_row(row: Achieved) -> list[str]:
    return [
        row.operation,
        short(row.direction),
        row.form + ("*" if row.allocates else "") + ("†" if row.in_place else ""),
        short(row.dtype),
        row.shape,
        size(row.traffic_bytes),
        number(row.gb_per_s),
        plus_minus(row.low_gb_per_s, row.high_gb_per_s),
        percent(row.percent_of_peak),
        percent(row.percent_of_ceiling),
        row.verdict,
    ]


def fusion_tables(rows: Sequence[Gain]) -> list[Table]:
    """Fused against unfused, L2-assisted comparisons apart."""
    if not rows:
        return [Table("Fused against unfused", [], [], notes=["no fused operation in these runs"])]
    columns = ["operation", "dir", "type", "shape", "cache", "fused", "unfused", "predicted"]
    columns += ["measured", "±"]
    right = frozenset(["predicted", "measured", "±"])
    tables = []
    for assisted, title in ((False, ""), (True, ", L2-assisted")):
        group = [row for row in rows if bool(row.l2_assisted) == assisted]
        notes = dict.fromkeys(f"{row.operation}: {row.why}" for row in group if row.why)
        cells = [_fusion_row(row) for row in group]
        tables.append(Table(f"Fused against unfused{title}", columns, cells, right, list(notes)))
    return [table for table in tables if table.rows]


def _fusion_row(row: Gain) -> list[str]:
    return [
        row.operation,
        short(row.direction),
        short(row.dtype),
        row.shape,
        row.cache,
        row.fused,
        row.unfused,
        f"{number(row.predicted)}x",
        DASH if row.measured is None else f"{number(row.measured)}x",
        plus_minus(row.low, row.high),
    ]


_URGENCY = ("slower", "missing", "incomparable", "ambiguous", "faster", "new", "same")


def compare_tables(comparison: Comparison) -> list[Table]:
    """Every case, what needs attention first; reasons of what could not be compared below."""
    rows = sorted(comparison.rows, key=lambda row: _URGENCY.index(row.verdict))
    columns = ["case", "time", "interval", "sees", "verdict"]
    notes = [
        f"{row.case}: {row.verdict}, {row.reason}" for row in rows if row.low is None or row.remark
    ]
    notes += [f"differs: {line}" for line in comparison.differences]
    notes += [f"doubt: {line}" for line in comparison.doubts]
    notes += [f"wrong result: {case}" for case in comparison.wrong]
    cells = [_compare_row(row) for row in rows]
    right = frozenset(["time", "interval", "sees"])
    title = "Time against the baseline (above 0 is slower)"
    if comparison.relative:
        title = "Time x own ceiling against the baseline (above 0 is further from its ceiling)"
    return [Table(title, columns, cells, right, notes)]


def _compare_row(row: Compared) -> list[str]:
    interval = DASH
    if row.low is not None and row.high is not None:
        interval = f"{change(row.low)} … {change(row.high)}"
    smallest = None if row.smallest is None else row.smallest + 1
    return [row.case, change(row.ratio), interval, change(smallest), row.verdict]


def change(ratio: float | None) -> str:
    """A ratio as a signed change; a dash for unknown."""
    if ratio is None:
        return DASH
    return f"{100 * (ratio - 1):+.1f}%" if ratio < 10 else f"x{number(ratio)}"
