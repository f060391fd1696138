"""Sections as Markdown, for a pull request or an issue."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from ..figures.figure import Figure
from ..tables import Table, escaped
from ..tables import as_markdown as table_as_markdown
from .section import Bullets, Folded, Heading, Link, Part, Section


def as_markdown(sections: Iterable[Section], images: Path | None = None) -> str:
    """images: the folder that holds the figures, as the page is to name it; None: words alone."""
    return "\n".join(
        "\n".join([f"## {escaped(section.title)}", "", *(_part(p, images) for p in section.parts)])
        for section in sections
    )


def _part(part: Part, images: Path | None) -> str:
    match part:
        case Heading(text):
            return f"### {escaped(text)}\n"
        case Bullets(lines):
            return "\n".join(f"- {escaped(line)}" for line in lines) + "\n"
        case Link(text, target):
            return f"- [{escaped(text)}]({target})"
        case Folded(table) | (Table() as table):
            return table_as_markdown(table)
        case Figure():
            return _figure(part, images)
        case str():
            return escaped(part) + "\n"


def _figure(figure: Figure, images: Path | None) -> str:
    lines = [f"### {escaped(figure.title)}", ""]
    if images is not None:
        target = quote(bytes(images / f"{figure.name}.svg"))
        lines += [f"![{escaped(figure.title)}]({target})", ""]
    return "\n".join([*lines, escaped(figure.shows), "", f"**{escaped(figure.concludes)}**", ""])
