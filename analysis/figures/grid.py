"""A grid of figures: rows of layers, columns of implementations, the better the darker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from .figure import GRID, INK, MUTED, Chart, data

_STEPS = ((1.0, "#7fbde6"), (0.9, "#a9d3ef"), (0.7, "#cfe6f6"), (0.4, "#e6f1fa"), (0.0, "#f5f9fc"))
"""From which part of the best on, with its colour: all light enough for black figures."""
_ON_CELL = "#101418"
_CELL = (58, 20)


@dataclass(frozen=True)
class Cell:
    """part: how much of the row's best it reaches, None for a hole, where `said` is the reason."""

    row: str
    column: str
    part: float | None
    said: str
    tip: str


def grid(cells: Sequence[Cell]) -> Chart:
    """Rows and columns in the order they come."""
    rows = list(dict.fromkeys(cell.row for cell in cells))
    columns = list(dict.fromkeys(cell.column for cell in cells))
    values = [
        {
            "row": rows.index(cell.row),
            "column": columns.index(cell.column),
            "color": None if cell.part is None else _color(cell.part),
            "said": cell.said,
            "tip": cell.tip,
        }
        for cell in cells
    ]
    y, x = alt.Y("row:O", axis=None), alt.X("column:O", axis=None)
    source = alt.Chart(data(values)).encode(x=x, y=y)
    measured = source.transform_filter("isValid(datum.color)")
    hole = source.transform_filter("!isValid(datum.color)")
    names = alt.Chart(data([{"row": i, "name": name} for i, name in enumerate(rows)]))
    heads = alt.Chart(data([{"column": i, "name": name} for i, name in enumerate(columns)]))
    return alt.layer(
        measured.mark_rect(stroke=GRID).encode(
            color=alt.Color("color:N", scale=None), description="tip:N"
        ),
        hole.mark_rect(stroke=GRID, fillOpacity=0, fill=GRID).encode(description="tip:N"),
        measured.mark_text(color=_ON_CELL, fontSize=11).encode(text="said:N"),
        hole.mark_text(color=MUTED, fontSize=10, fontStyle="italic", limit=_CELL[0] - 4).encode(
            text="said:N"
        ),
        names.mark_text(color=INK, align="right", limit=190).encode(
            y=y, x=alt.value(-6), text="name:N"
        ),
        heads.mark_text(color=INK, baseline="bottom", align="left", angle=325, dx=2).encode(
            x=x, y=alt.value(-4), text="name:N"
        ),
    ).properties(width=alt.Step(_CELL[0]), height=alt.Step(_CELL[1]))


def _color(part: float) -> str:
    return next(color for least, color in _STEPS if part >= least)
