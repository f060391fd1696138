"""What every analysis script does around its table: arguments, reading, printing, exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from ..results.checked import printable
from ..results.reading import Run
from ..results.store import StoreError
from .loading import frame, read
from .tables import Table, as_markdown, as_text

DAMAGED = 1
USAGE = 2


def rendered(tables: Iterable[Table], markdown: bool, color: bool = False) -> str:
    """Tables one under the other, as Markdown or text."""
    parts = [as_markdown(table) if markdown else as_text(table, color=color) for table in tables]
    return "\n".join(parts)


def complaints(runs: Iterable[Run]) -> list[str]:
    """Every problem of the runs, one line each."""
    return [str(problem) for run in runs for problem in run.problems]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The arguments that all scripts share; the docstring is the help."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--markdown", action="store_true", help="Markdown instead of text")
    return made


def run_script(
    doc: str | None,
    arguments: Sequence[str] | None,
    tables: Callable[[Sequence[Run], pd.DataFrame], Iterable[Table]],
) -> int:
    """Load the runs named on the command line, print their tables and what is damaged."""
    options = parser(doc)
    options.add_argument("runs", nargs="+", metavar="RUN", help="run, device folder or glob")
    given = options.parse_args(arguments)
    try:
        runs = read(given.runs)
    except StoreError as error:
        return refuse(error)
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    emit(rendered(tables(runs, frame(runs)), given.markdown, color))
    return complain(runs)


def emit(text: str) -> None:
    """Print; a reader that closes the pipe early ends the output, not the program."""
    try:
        print(text, end="" if text.endswith("\n") else "\n", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(runs: Iterable[Run]) -> int:
    """List problems on standard error; the exit code they deserve."""
    found = complaints(runs)
    for line in found:
        print(line, file=sys.stderr)
    return DAMAGED if found else 0


def refuse(error: Exception) -> int:
    print(printable(str(error)), file=sys.stderr)
    return USAGE
