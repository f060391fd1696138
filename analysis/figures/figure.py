"""A figure, its looks, and its forms: SVG and PNG as files, SVG that follows a page's colours.

Charts are Altair's, drawn by vl-convert without a browser or a network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from ...results.checked import printable

Chart = alt.LayerChart | alt.FacetChart

WIDTH = 400
"""Of the plot without its labels, in pixels: with them a phone shows it at three quarters."""
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
PAPER, INK, MUTED, GRID, SHADE = "#ffffff", "#1c2128", "#5a636e", "#dce1e6", "#eef1f4"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a07800", "#56b4e9", "#7f7f7f", "#7b52ab")
"""After Okabe and Ito: told apart with any colour vision. Labels stand beside them all the same."""
_VARIABLES = {PAPER: "none", INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)"} | {
    color: f"var(--series-{number})" for number, color in enumerate(SERIES)
}
_COLOR = re.compile("|".join(map(re.escape, _VARIABLES)), re.IGNORECASE)
_SAID_ELSEWHERE = re.compile(
    rf' (?:font-family="{FONT}"|font-size="12px"|font-weight="normal"|opacity="1"|'
    r'pointer-events="none"|role="graphics-(?:symbol|object)"|'
    r'aria-roledescription="(?!axis)[^"]*")'
)
"""Attributes that the style sheet of the page gives once, or that say nothing there."""
_PLACE = re.compile(r' (?:d|transform|[xy]2?|width|height)="[^"]*"')
_LONG = re.compile(r"(\.\d\d)\d+")
_PNG_SCALE = 2.0
_VEGA_LITE = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])


@dataclass(frozen=True)
class Figure:
    """name: stem of its files. shows, concludes: a sentence each, computed from the data.

    draw: the chart, made only where someone wants to see it.
    """

    name: str
    title: str
    shows: str
    concludes: str
    draw: Callable[[], Chart] = field(repr=False)


def svg(figure: Figure) -> str:
    """The figure as a file of its own: dark on white."""
    import vl_convert

    # Altair checks every part of a chart against a schema, for longer than drawing it takes; the
    # tests draw every kind of figure with the check on.
    with debug_mode(False):
        chart = _dressed(figure.draw()).to_dict(validate=False)
    drawn: str = vl_convert.vegalite_to_svg(chart, vl_version=_VEGA_LITE)
    return drawn


def png(drawn: str) -> bytes:
    """What `svg` gave as an image, twice the size for dense screens."""
    import vl_convert

    made: bytes = vl_convert.svg_to_png(drawn, scale=_PNG_SCALE)
    return made


def page_svg(drawn: str, name: str) -> str:
    """What `svg` gave with the colours of the page that it is put into, light or dark.

    name: sets its clip paths apart from those of other figures on the page.
    """
    drawn = re.sub(r'(id="|url\(#)(clip\d+)', rf"\g<1>{name}-\g<2>", drawn)
    drawn = _SAID_ELSEWHERE.sub("", drawn)
    drawn = _PLACE.sub(lambda found: _LONG.sub(r"\g<1>", found[0]), drawn)
    return _COLOR.sub(lambda found: _VARIABLES[found[0].lower()], drawn)


def colors(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name; names beyond the palette begin it again."""
    ordered = dict.fromkeys(names)
    return {name: SERIES[number % len(SERIES)] for number, name in enumerate(ordered)}


def data(rows: Sequence[Mapping[str, Any]]) -> alt.InlineData:
    """Rows with texts that any SVG may hold."""
    safe = [
        {key: printable(value) if isinstance(value, str) else value for key, value in row.items()}
        for row in rows
    ]
    return alt.InlineData(values=safe)


def palette(series: Mapping[str, str]) -> alt.Scale:
    names = [printable(name) for name in series]
    return alt.Scale(domain=names, range=list(series.values()))


def legend(columns: int = 4) -> alt.Legend:
    return alt.Legend(
        orient="top", direction="horizontal", columns=columns, title=None, labelLimit=170
    )


def _dressed(chart: Chart) -> Chart:
    dressed: Chart = chart.configure(
        background=PAPER,
        font=FONT,
        padding=10,
        axis=alt.AxisConfig(
            labelColor=MUTED,
            titleColor=INK,
            titleFontWeight="normal",
            labelFontSize=12,
            titleFontSize=13,
            gridColor=GRID,
            domainColor=GRID,
            tickColor=GRID,
            labelOverlap="greedy",
            labelSeparation=6,
        ),
        legend=alt.LegendConfig(
            labelColor=INK,
            labelFontSize=12,
            symbolType="circle",
            symbolBaseFillColor=MUTED,
            symbolBaseStrokeColor=MUTED,
        ),
        text=alt.MarkConfig(color=INK, fontSize=12),
        view=alt.ViewConfig(stroke=None),
    )
    return dressed
