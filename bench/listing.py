"""What there is to measure, and why some of it cannot run here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..kernels.discovery import BACKENDS, Catalogue, Implementation
from ..kernels.operation import DIRECTIONS, DirectionName
from ..kernels.target import Target
from .cases import matching, wrong_device


@dataclass(frozen=True)
class Entry:
    """One implementation of one direction of an operation."""

    operation: str
    family: str
    direction: str
    implementation: str
    variant: str
    dtypes: list[str]  # that it can run
    available: bool
    reason: str | None  # why not, or why not every dtype
    tier: int
    shape: dict[str, int]  # the first one
    bytes_read: int  # at that shape, in the first dtype
    bytes_written: int
    chain: list[str]  # operations a fused one replaces

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def entries(catalogue: Catalogue, target: Target, names: Sequence[str] = ()) -> Iterator[Entry]:
    """Every implementation of the operations named, of all if none, in the order of measuring.

    Raises presets.UnknownName for a name or pattern that matches none.
    """
    operations = matching(catalogue, names) if names else catalogue.operations.values()
    for operation in operations:
        for implementation in catalogue.implementations(operation):
            for direction in DIRECTIONS:
                if implementation.has(direction):
                    yield _entry(implementation, direction, target)


def _entry(implementation: Implementation, direction: DirectionName, target: Target) -> Entry:
    operation = implementation.operation
    shape = operation.shapes[0]
    io = operation.directions(shape.dims, operation.dtypes[0]).get(direction)
    assert io is not None
    dtypes, reasons = _runnable(implementation, direction)
    wrong = wrong_device(implementation.backend, target)
    return Entry(
        operation=operation.name,
        family=operation.family,
        direction=direction,
        implementation=implementation.backend,
        variant=implementation.variant,
        dtypes=dtypes,
        available=bool(dtypes) and wrong is None,
        reason=wrong or ("; ".join(dict.fromkeys(reasons)) or None),
        tier=operation.tier,
        shape=shape.dims,
        bytes_read=io.bytes_read,
        bytes_written=io.bytes_written,
        chain=_chain(implementation, direction),
    )


def _runnable(implementation: Implementation, direction: str) -> tuple[list[str], list[str]]:
    dtypes, reasons = [], []
    for dtype in implementation.operation.dtypes:
        reason = implementation.refuses(direction, dtype.name)
        if reason is None:
            dtypes.append(dtype.name)
        else:
            reasons.append(reason)
    return dtypes, reasons


def _chain(implementation: Implementation, direction: str) -> list[str]:
    chains = implementation.operation.chains
    if not chains:
        return []
    chosen = chains.get(implementation.variant) or next(iter(chains.values()))
    dtype = implementation.operation.dtypes[0]
    return [step.operation for step in chosen.steps(direction, dtype)]


def matrix(found: Sequence[Entry]) -> tuple[list[str], list[tuple[str, str, int, list[str]]]]:
    """(backends, rows of (operation, direction, tier, cells)) for a person to read.

    A named variant has a row of its own. A cell is "yes", "no 1" with the number of its footnote
    (see `reasons`), or empty where there is no such implementation.
    """
    backends = [b for b in BACKENDS if any(entry.implementation == b for entry in found)]
    notes = reasons(found)
    cells: dict[tuple[str, str, int], dict[str, str]] = {}
    for entry in sorted(found, key=lambda e: e.variant != ""):
        name = f"{entry.operation}:{entry.variant}" if entry.variant else entry.operation
        row = cells.setdefault((name, entry.direction, entry.tier), {})
        row[entry.implementation] = _cell(entry, notes)
    return backends, [
        (*row, [by_backend.get(backend, "") for backend in backends])
        for row, by_backend in sorted(cells.items(), key=lambda pair: _order(found, pair[0][0]))
    ]


def _order(found: Sequence[Entry], row: str) -> int:
    """Place of a row's operation among those found: its variants follow it."""
    operation = row.partition(":")[0]
    return next(i for i, entry in enumerate(found) if entry.operation == operation)


def reasons(found: Sequence[Entry]) -> list[str]:
    """Distinct reasons, in the order of their footnotes."""
    return list(dict.fromkeys(entry.reason for entry in found if entry.reason))


def _cell(entry: Entry, notes: list[str]) -> str:
    word = "yes" if entry.available else "no"
    return f"{word} {notes.index(entry.reason) + 1}" if entry.reason else word
