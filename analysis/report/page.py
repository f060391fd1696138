"""Sections as one HTML file that needs nothing else, for screens light and dark, and paper."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import jinja2
from markupsafe import Markup

from ...results.checked import printable
from ..figures.figure import WIDTH, Figure, page_svg, svg
from ..tables import Table
from .section import Section

_HERE = Path(__file__).parent
_LARGEST, _SMALLEST = 1.35, 0.72
"""How far a figure grows and shrinks with the page; beyond, it scrolls."""
_FEW_ROWS = 8
"""A table this short is taken in at a glance: no filter."""


def page(sections: Sequence[Section], drawn: Mapping[str, str]) -> str:
    """The whole document; `drawn`: the SVG of figures that were drawn already, by name."""

    def figure(part: Figure) -> Markup:
        text = page_svg(drawn.get(part.name) or svg(part), part.name)
        wide = re.search(r'width="([\d.]+)"', text)
        width = float(wide[1]) if wide else WIDTH
        size = f"max-width:{_LARGEST * width:.0f}px;min-width:{_SMALLEST * width:.0f}px"
        # vl-convert escapes what comes from a record; nothing else is in it.
        return Markup(text.replace("<svg ", f'<svg style="{size}" ', 1))

    script, style = (_HERE.joinpath(name).read_text("utf-8") for name in ("page.js", "page.css"))
    environment = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FileSystemLoader(_HERE),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    digest = hashlib.sha256(script.encode()).digest()
    return environment.get_template("page.html").render(
        sections=sections,
        kind=lambda part: type(part).__name__,
        figure=figure,
        rows=_rows,
        few=_FEW_ROWS,
        script=Markup(script),
        style=Markup(style),
        script_hash=base64.b64encode(digest).decode(),
    )


def _rows(table: Table) -> Markup:
    """The body of a table: tens of thousands of rows are too many for a template."""
    opening = ['<td class="n">' if name in table.right else "<td>" for name in table.columns]
    verdicts = [name in ("verdict", "status") for name in table.columns]
    lines = []
    for row in table.rows:
        cells = [escape(printable(cell)) for cell in row]
        lines.append(
            "".join(
                f'<td class="v v-{cell}">{cell}</td>' if verdict else f"{tag}{cell}</td>"
                for tag, verdict, cell in zip(opening, verdicts, cells, strict=True)
            )
        )
    return Markup("\n".join(f"<tr>{line}</tr>" for line in lines))
