"""What a person sees while a run goes on, and the coverage matrix."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from ..results.record import Record
from .device.select import Selected
from .listing import Entry, matrix, reasons

_PLAIN_INTERVAL_SECONDS = 10.0


class Progress:
    """Progress with the time left on a terminal; a plain line every ten seconds elsewhere.

    Failures are shown as they happen, each once.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, soft_wrap=True)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._total, self._seen = 0, 0
        self._started = self._shown = time.monotonic()
        self._told: set[str] = set()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, folder: Path, selected: Selected, total: int) -> None:
        if selected.fallback_reason:
            self._say(f"measuring the CPU: {selected.fallback_reason}")
        self._say(f"{selected.device.name}: {total} measurements into {folder}")
        for warning in selected.warnings:
            self._say(f"warning: {warning}")
        self._total = total
        self._started = self._shown = time.monotonic()
        self._bar.update(self._task, total=total)

    def note(self, line: str) -> None:
        self._say(line)

    def case(self, name: str, process: int) -> None:
        self._bar.update(self._task, description=f"process {process + 1}: {name[:60]}")

    def record(self, record: Record) -> None:
        if record.implementation == "memcpy":
            return
        self._seen += 1
        self._bar.advance(self._task)
        if record.status in ("wrong", "failed", "timeout"):
            self._tell(record)
        elif not self._console.is_terminal:
            self._plain(record)

    def _tell(self, record: Record) -> None:
        line = f"{record.status}: {record.case}: {record.reason}"
        if line not in self._told:
            self._told.add(line)
            self._say(line)

    def _plain(self, record: Record) -> None:
        now = time.monotonic()
        if now - self._shown < _PLAIN_INTERVAL_SECONDS or not record.seconds:
            return
        self._shown = now
        left = (now - self._started) / self._seen * (self._total - self._seen)
        gbps = (record.bytes_read + record.bytes_written) / median(record.seconds) / 1e9
        self._say(
            f"{self._seen}/{self._total}, about {left:.0f} s left: {record.case} {gbps:.1f} GB/s"
        )

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)


def show_listing(found: Sequence[Entry]) -> None:
    """The coverage matrix: operation x backend, reasons as footnotes."""
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width to fit into
        console = Console(width=160)
    backends, rows = matrix(found)
    table = Table(box=None, pad_edge=False)
    for heading in ("operation", "direction", "tier", *backends):
        table.add_column(heading, no_wrap=True)
    for operation, direction, tier, cells in rows:
        table.add_row(operation, direction, str(tier), *cells)
    console.print(table)
    for number, reason in enumerate(reasons(found), 1):
        console.print(f"{number}: {reason}", markup=False, highlight=False)
