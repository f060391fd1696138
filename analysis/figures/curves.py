"""Lines: bandwidth against size, a roofline, samples and clocks in the order they were taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import altair as alt

from .figure import INK, MUTED, WIDTH, Chart, colors, data, legend, palette

HEIGHT = 260
_SI = "replace(replace(replace(format(datum.value, '~s'), 'k', ' k'), 'M', ' M'), 'G', ' G')"


@dataclass(frozen=True)
class Axis:
    """domain None: as far as the data go."""

    title: str
    kind: Literal["linear", "log"] = "linear"
    unit: str = ""
    domain: tuple[float, float] | None = None


@dataclass(frozen=True)
class Spot:
    """One point of a line. dash: what its stroke stands for."""

    x: float
    y: float
    series: str
    tip: str
    dash: str = ""


@dataclass(frozen=True)
class Line:
    """Through all of the plot: at x, or at y, or y = slope times x."""

    name: str
    x: float | None = None
    y: float | None = None
    slope: float | None = None
    dashed: bool = False


def curves(
    spots: Sequence[Spot],
    x_axis: Axis,
    y_axis: Axis,
    lines: Sequence[Line] = (),
    joined: bool = True,
    names: Sequence[str] = (),
) -> Chart:
    """Spots of a series and dash joined in the order of x; named lines behind them.

    names: all series there may be, so that each keeps its colour from figure to figure.
    """
    x_scale = _scale(x_axis, [spot.x for spot in spots])
    y_scale = _scale(y_axis, [spot.y for spot in spots])
    x = alt.X("x:Q", scale=x_scale, title=x_axis.title, axis=_axis(x_axis))
    y = alt.Y("y:Q", scale=y_scale, title=y_axis.title, axis=_axis(y_axis))
    rows = [{"x": s.x, "y": s.y, "series": s.series, "dash": s.dash, "tip": s.tip} for s in spots]
    source = alt.Chart(data(rows))
    there = {spot.series for spot in spots}
    wheel = colors([*names, *sorted(there)])
    series = {name: color for name, color in wheel.items() if name in there}
    color = alt.Color("series:N", scale=palette(series), legend=legend())
    dashes = sorted({spot.dash for spot in spots})
    stroke = alt.StrokeDash(
        "dash:N",
        scale=alt.Scale(domain=dashes, range=[[1, 0], [6, 4], [2, 3]]),
        legend=legend() if len(dashes) > 1 else None,
    )
    parts = [
        layer
        for number, line in enumerate(lines)
        for layer in _drawn(line, 4 + 15 * number, x_scale, y_scale, x, y)
    ]
    if joined:
        parts.append(
            source.mark_line(strokeWidth=1.8).encode(
                x=x, y=y, color=color, strokeDash=stroke, detail="dash:N"
            )
        )
    size = 36 if len(spots) < 200 else 14
    parts.append(
        source.mark_circle(size=size, opacity=0.9).encode(
            x=x, y=y, color=color, description="tip:N"
        )
    )
    return alt.layer(*parts).properties(width=WIDTH, height=HEIGHT)


def _scale(axis: Axis, values: Sequence[float]) -> alt.Scale:
    domain = axis.domain or (min(values, default=0.0), max(values, default=1.0))
    if axis.domain is None and axis.kind == "log":
        domain = domain[0] / 1.3, domain[1] * 1.3
    elif axis.domain is None:
        room = 0.04 * ((domain[1] - domain[0]) or 1.0)
        domain = domain[0] - room, domain[1] + room
    return alt.Scale(type=axis.kind, domain=list(domain), nice=False)


def _axis(axis: Axis) -> alt.Axis:
    if axis.unit == "B":
        return alt.Axis(labelExpr=f"{_SI} + 'B'", tickCount=6)
    return alt.Axis(format="~r", tickCount=6)


def _drawn(
    line: Line, down: int, x_scale: alt.Scale, y_scale: alt.Scale, x: alt.X, y: alt.Y
) -> list[alt.Chart]:
    """down: where the name of a vertical line stands, so that those close together stay legible."""
    dash = [5, 3] if line.dashed else [1, 0]
    if line.slope is not None:
        return _slope(line, line.slope, x_scale, x, y, dash)
    at, scale = (line.x, x_scale) if line.x is not None else (line.y, y_scale)
    source = alt.Chart(data([{"at": at, "name": line.name}]))
    rule = source.mark_rule(color=MUTED, strokeDash=dash, strokeWidth=1.3)
    if line.x is not None:
        where = alt.X("at:Q", scale=scale)
        words = source.mark_text(align="left", baseline="top", dx=4, color=MUTED)
        return [
            rule.encode(x=where),
            words.encode(x=where, y=alt.value(down), text="name:N"),
        ]
    where_y = alt.Y("at:Q", scale=scale)
    words = source.mark_text(align="right", baseline="bottom", dy=-3, color=INK)
    return [
        rule.encode(y=where_y),
        words.encode(x=alt.value(WIDTH), y=where_y, text="name:N"),
    ]


def _slope(
    line: Line, slope: float, x_scale: alt.Scale, x: alt.X, y: alt.Y, dash: list[int]
) -> list[alt.Chart]:
    ends = [float(end) for end in x_scale.to_dict()["domain"]]
    rows = [{"x": end, "y": slope * end, "name": line.name} for end in ends]
    roof = alt.Chart(data(rows)).mark_line(color=INK, strokeDash=dash, strokeWidth=1.5, clip=True)
    words = alt.Chart(data(rows[-1:])).mark_text(align="left", baseline="middle", dx=5)
    return [roof.encode(x=x, y=y), words.encode(x=x, y=y, text="name:N")]
