"""How a command ends that cannot do what it was asked: one line, and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import NoReturn

import typer


def fail(message: str, code: int) -> NoReturn:
    from ..results.checked import printable  # a path or a name may hold what a terminal acts on

    typer.echo(f"membound: {printable(message)}", err=True)
    raise typer.Exit(code)


def run(app: Callable[[], object]) -> None:
    """Run the program; output that cannot be written is one line, and characters that a terminal
    lacks are replaced."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is flushed later
        what = error.filename or "standard output"
        typer.echo(f"membound: {what}: {error.strerror or error}", err=True)
        sys.exit(2)


@contextmanager
def usage_errors(
    interrupted: str = "interrupted; records stay: complete the run with --resume and its folder",
) -> Iterator[None]:
    """What a user can do wrong, or a machine can lack, as one line and its exit code."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        fail(interrupted, 130)
    except ImportError as error:
        fail(f"{error}; install membound with an extra: cpu, cuda12 or cuda13", 4)
    except Exception as error:
        code = getattr(error, "exit_code", None)  # what can be foreseen carries its exit code
        if code is None:
            raise
        fail(str(error), code)
