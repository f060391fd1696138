"""One quantity against another with the line on which they are equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from .figure import MUTED, WIDTH, Chart, colors, data, legend, palette

_ROOM = 1.15
_MARGIN = 1.04


@dataclass(frozen=True)
class Point:
    """low and high: interval of y. group: what its shape stands for."""

    x: float
    y: float
    series: str
    tip: str
    low: float | None = None
    high: float | None = None
    group: str = ""


def scatter(
    points: Sequence[Point],
    x_title: str,
    y_title: str,
    ratio: bool = False,
    names: Sequence[str] = (),
) -> Chart:
    """Points, intervals and the diagonal. ratio: both axes logarithmic and alike.

    names: all series there may be, so that each keeps its colour from figure to figure.
    """
    values = [v for point in points for v in (point.x, point.y)]
    least = min([*values, 1.0]) / _ROOM if ratio else 0.0
    most = max([*values, 1.0]) * (_ROOM if ratio else _MARGIN)
    scale = alt.Scale(domain=[least, most], type="log" if ratio else "linear", nice=False)
    ticks = [step for step in _STEPS if least <= step <= most] if ratio else None
    axis = alt.Axis(format="~r", tickCount=6) if ticks is None else _ratio_axis(ticks)
    x = alt.X("x:Q", scale=scale, title=x_title, axis=axis)
    y = alt.Y("y:Q", scale=scale, title=y_title, axis=axis)
    source = alt.Chart(
        data(
            [
                {
                    "x": point.x,
                    "y": point.y,
                    "low": None if point.low is None else max(point.low, least),
                    "high": None if point.high is None else min(point.high, most),
                    "series": point.series,
                    "group": point.group,
                    "tip": point.tip,
                }
                for point in points
            ]
        )
    )
    there = {point.series for point in points}
    wheel = colors([*names, *sorted(there)])
    series = {name: color for name, color in wheel.items() if name in there}
    color = alt.Color("series:N", scale=palette(series), legend=legend())
    groups = list(dict.fromkeys(point.group for point in points))
    shape = alt.Shape(
        "group:N",
        scale=alt.Scale(domain=groups, range=["circle", "square", "triangle-up", "diamond"]),
        legend=legend() if len(groups) > 1 else None,
    )
    diagonal = (
        alt.Chart(data([{"x": least, "y": least}, {"x": most, "y": most}]))
        .mark_line(color=MUTED, strokeDash=[5, 3], strokeWidth=1.3)
        .encode(x=x, y=y)
    )
    whiskers = (
        source.transform_filter("isValid(datum.low) && isValid(datum.high)")
        .mark_rule(strokeWidth=1.3, opacity=0.6)
        .encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=color)
    )
    marks = source.mark_point(size=70, filled=True, opacity=0.85).encode(
        x=x, y=y, color=color, shape=shape, description="tip:N"
    )
    return alt.layer(diagonal, whiskers, marks).properties(width=WIDTH, height=320)


_STEPS = (0.1, 0.2, 0.5, 0.7, 1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500)


def _ratio_axis(ticks: Sequence[float]) -> alt.Axis:
    return alt.Axis(values=list(ticks), labelExpr="datum.value + 'x'")
