"""What runs say, in reading order, as text for a terminal, Markdown, or a page to open."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...results.checked import printable
from ...results.reading import read_run
from ...results.store import StoreError
from ..loading import read
from ..script import DAMAGED, complaints, rendered
from ..tables import Table, bandwidth_tables, fusion_tables
from .answer import answer
from .head import failures, head, judged, warnings
from .section import Section
from .told import Told, tell


@dataclass(frozen=True)
class Report:
    """exit_code: 1 where a file of a run is damaged, else 0. problems: what is, a line each."""

    text: str
    exit_code: int
    problems: tuple[str, ...] = ()


Form = Literal["text", "markdown", "html"]
_FORMS: Mapping[str, Form] = {
    **dict.fromkeys(("", ".txt"), "text"),
    ".md": "markdown",
    **dict.fromkeys((".html", ".htm"), "html"),
}


def form_of(output: Path | None, markdown: bool = False) -> Form:
    """What a report is written as: the name of the file decides, or else `markdown`.

    Raises StoreError for a name that no report ends in, or that contradicts `markdown`.
    """
    suffix = output.suffix.lower() if output else ""
    if suffix not in _FORMS:
        raise StoreError(f"{output}: no report is {suffix}; name a file ending in .html, .md, .txt")
    if markdown and _FORMS[suffix] == "html":
        raise StoreError(f"--markdown contradicts {output}; name a file ending in .md")
    return "markdown" if markdown else _FORMS[suffix]


def report(
    paths: Iterable[str | Path],
    form: Form = "text",
    color: bool = False,
    figures: Path | None = None,
    output: Path | None = None,
) -> Report:
    """Everything about the runs that `paths` name.

    figures: a folder that every figure is written to, as SVG and PNG. output: the file the report
    is to be written to, which its links are relative to. Raises StoreError where a path holds no
    run or the folder cannot be written.
    """
    runs = read(paths)
    told = tell(runs)
    problems = tuple(complaints(runs))
    damaged = DAMAGED if problems else 0
    if form == "text" and not figures:
        return Report("\n".join(_text(one, color, whole=True) for one in told), damaged, problems)
    from .content import sections

    found = sections(told, output.resolve().parent if output else None)
    drawn = _figures(found, figures)
    if form == "html":
        from .page import page

        return Report(page(found, drawn), damaged, problems)
    if form == "markdown":
        from .markdown import as_markdown

        return Report(as_markdown(found, _images(figures, output)), damaged, problems)
    return Report("\n".join(_text(one, color, whole=True) for one in told), damaged, problems)


def _figures(found: Iterable[Section], folder: Path | None) -> dict[str, str]:
    """Every figure of the sections as SVG, written where there is a folder for them."""
    if folder is None:
        return {}
    from ..figures.figure import Figure, png, svg

    drawn = {
        part.name: svg(part) for one in found for part in one.parts if isinstance(part, Figure)
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in drawn.items():
            (folder / f"{name}.svg").write_text(text, encoding="utf-8")
            (folder / f"{name}.png").write_bytes(png(text))
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from error
    return drawn


def _images(figures: Path | None, output: Path | None) -> Path | None:
    """How Markdown in `output` names the folder of figures."""
    if figures is None:
        return None
    beside = output.resolve().parent if output else Path.cwd()
    return Path(os.path.relpath(figures.resolve(), beside))


def run_table(path: str | Path, markdown: bool = False, color: bool = False) -> str:
    """Device, ceilings, bandwidth and what failed of one run: what is shown after measuring."""
    (told,) = tell([read_run(path)])
    return _text(told, color, whole=False)


def _text(told: Told, color: bool, whole: bool) -> str:
    tables = bandwidth_tables(told.rows, told.moved)
    if told.gains or whole:
        tables += fusion_tables(told.gains)
    notes = warnings(told)
    last = [judged(told.rows), failures(told.rows)]
    last += [Table("Warnings", [], [], notes=notes)] if notes else []
    tables += [table for table in last if table]
    lines = head(told.run, told.found, told.moved)
    if whole and told.rows:
        lines += ["", *answer(told)]
    return "\n".join(map(printable, lines)) + "\n\n" + rendered(tables, False, color)
