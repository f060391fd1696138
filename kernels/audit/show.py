"""What a person sees of an audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from .run import Audited, Row

_HEADINGS = (
    *("status", "operation", "dir", "dtype", "arch", "shape", "regs", "spill", "ld", "st"),
    *("occupancy", "instr/B", "special/B", "issue", "KiB in flight", "margin"),
)
_LEGEND = (
    "regs: registers a thread; spill: bytes stored to local memory; ld, st: bytes of the widest "
    "global access\n"
    "instr/B, special/B: of one thread, per byte of traffic, on the way that moves the bytes\n"
    "issue: of what the device can issue while it copies; margin: loads in flight, of what its "
    "bandwidth x latency wants; both for the worst device of the architecture"
)


def show(found: Audited) -> None:
    """Every kernel, faults first; reasons; how many of each status on every architecture."""
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width to fit into
        console = Console(width=200)
    for row in sorted(found.rows, key=lambda row: row.order):
        if row.reason:
            where = f"{row.operation} {row.direction} {row.dtype} {row.shape} {row.arch}"
            line = f"{row.status}: {where}: {row.reason}\n    {row.kernel}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for place, heading in enumerate(_HEADINGS):
        table.add_column(heading, no_wrap=True, justify="right" if place > 5 else "left")
    for row in sorted(found.rows, key=lambda row: row.order):
        table.add_row(*_cells(row))
    console.print(table)
    console.print(_LEGEND, markup=False, highlight=False, soft_wrap=True)
    for line in counts(found.rows):
        console.print(line, markup=False, highlight=False)


def counts(rows: Sequence[Row]) -> list[str]:
    """`sm_121: 2 fault, 393 ok`, by architecture."""
    by_arch: dict[str, Counter[str]] = {}
    for row in rows:
        by_arch.setdefault(row.arch, Counter())[row.status] += 1
    return [
        f"{arch}: " + ", ".join(f"{number} {status}" for status, number in sorted(found.items()))
        for arch, found in by_arch.items()
    ]


def _cells(row: Row) -> list[str]:
    direction = {"forward": "fwd", "backward": "bwd"}[row.direction]
    name = f"{row.operation}:{row.variant}" if row.variant else row.operation
    cells = [row.status, name, direction, row.dtype, row.arch, row.shape]
    known = row.figures
    if known is None:
        return cells
    return [
        *cells,
        *map(str, (known.registers, known.spill_bytes)),
        *map(str, (known.load_bytes_max, known.store_bytes_max)),
        f"{known.occupancy:.0%}",
        _number(known.instructions_per_byte),
        _number(known.special_per_byte),
        _extreme(known.issue_share, max, "{:.0%}"),
        f"{known.bytes_in_flight_per_sm / 1024:.0f}",
        _extreme(known.in_flight_margin, min, "{:.1f}x"),
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _extreme(
    by_device: Mapping[str, float], worst: Callable[[Iterable[float]], float], form: str
) -> str:
    return form.format(worst(by_device.values())) if by_device else "–"
