"""Bars in groups: what was reached, its interval, and what could have been reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from .figure import INK, MUTED, WIDTH, Chart, colors, data, palette

_ROW = 16
_ROOM = 1.03


@dataclass(frozen=True)
class Bar:
    """One bar of a group. value None: a hole, with `said` in its place.

    limit: what it is held to, drawn as a tick. pale: its value is not to be relied on.
    beside: a figure at the right edge. tip: everything about it.
    """

    group: str
    label: str
    value: float | None
    tip: str
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    beside: str = ""
    said: str = ""
    pale: bool = False


def bars(
    rows: Sequence[Bar],
    unit: str,
    line: float | None = None,
    line_name: str = "",
    labels: Sequence[str] = (),
) -> Chart:
    """Groups in the order given, each under its name. line: drawn across all of them.

    labels: all that may occur, so that each keeps its colour from figure to figure.
    """
    most = max(
        [
            *(v for row in rows for v in (row.value, row.limit) if v is not None),
            *([line] if line else []),
        ],
        default=1.0,
    )
    scale = alt.Scale(domain=[0, most * _ROOM], nice=False)
    lines: list[dict[str, object]] = []
    group = None
    for row in rows:
        if row.group != group:
            group = row.group
            lines.append({"y": len(lines), "head": group})
        lines.append(_line(row, len(lines), most * _ROOM))
    source = alt.Chart(data(lines)).encode(y=alt.Y("y:O", axis=None))
    x = alt.X("value:Q", scale=scale, title=unit, axis=alt.Axis(tickCount=6))
    drawn = source.transform_filter("isValid(datum.value)")
    color = alt.Color(
        "label:N", scale=palette(colors([*labels, *(row.label for row in rows)])), legend=None
    )
    faint = alt.condition("datum.pale", alt.value(0.35), alt.value(1.0))
    parts = [
        drawn.mark_bar(height=10).encode(x=x, color=color, opacity=faint, description="tip:N"),
        drawn.transform_filter("isValid(datum.low)")
        .mark_rule(color=INK, strokeWidth=1.3)
        .encode(x=alt.X("low:Q", scale=scale), x2="high:Q"),
        source.transform_filter("isValid(datum.limit)")
        .mark_tick(color=INK, thickness=2.5, height=14)
        .encode(x=alt.X("limit:Q", scale=scale)),
        _words(source, "head", fontWeight="bold", align="left", x=0),
        _words(source, "label", align="right", x=-6, limit=140),
        _words(source, "beside", align="left", x=WIDTH + 6, color=MUTED),
        _words(source, "said", align="left", x=4, color=MUTED, fontStyle="italic", limit=WIDTH - 4),
    ]
    if line:
        parts += _line_across(line, line_name, scale)
    return alt.layer(*parts).properties(width=WIDTH, height=alt.Step(_ROW))


def _line(row: Bar, y: int, most: float) -> dict[str, object]:
    cut = [None if end is None else min(end, most) for end in (row.low, row.high)]
    return {
        "y": y,
        "label": row.label,
        "value": row.value,
        "low": cut[0],
        "high": cut[1],
        "limit": row.limit,
        "beside": row.beside,
        "said": row.said if row.value is None else "",
        "pale": row.pale,
        "tip": row.tip,
    }


def _words(source: alt.Chart, name: str, x: float, **looks: Any) -> alt.Chart:
    shown = source.transform_filter(f"datum.{name}")
    worded: alt.Chart = shown.mark_text(baseline="middle", fontSize=12, **looks).encode(
        x=alt.value(x), text=f"{name}:N"
    )
    return worded


def _line_across(at: float, name: str, scale: alt.Scale) -> list[alt.Chart]:
    source = alt.Chart(data([{"at": at, "name": name}]))
    x = alt.X("at:Q", scale=scale)
    return [
        source.mark_rule(color=INK, strokeDash=[5, 3], strokeWidth=1.3).encode(x=x),
        source.mark_text(align="right", baseline="bottom", dx=3, dy=-3, color=INK).encode(
            x=x, y=alt.value(0), text="name:N"
        ),
    ]
