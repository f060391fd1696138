"""What every analysis script does around its table: arguments, reading, printing, exit code."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

import pandas as pd

from ..results.checked import printable
from ..results.reading import Run
from ..results.store import StoreError
from .compare import Comparison
from .loading import frame, read
from .sides import told_apart
from .tables import Table, as_markdown, as_text, compare_tables

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


def sides(base: Sequence[Run], current: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Both sides with every run once; what is left out is said on standard error."""
    found = told_apart(base, current)
    for line in found.notes:
        print(printable(line), file=sys.stderr)
    return found.base, found.current


def conclude(
    found: Comparison,
    strict: bool = False,
    allow_missing: bool = False,
    markdown: bool = False,
    as_json: bool = False,
    color: bool = False,
) -> int:
    """Print every case of a comparison and what it comes to; the exit code of that."""
    code, why = found.exit_code(strict, allow_missing)
    if as_json:
        emit(json.dumps([asdict(row) for row in found.rows], indent=2, allow_nan=False))
        print(why, file=sys.stderr)
    else:
        emit(rendered(compare_tables(found), markdown, color) + f"\n{why}")
    return code


def refuse(error: Exception) -> int:
    print(printable(str(error)), file=sys.stderr)
    return USAGE
