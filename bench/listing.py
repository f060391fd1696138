"""What there is to measure, and why some of it cannot run here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..kernels.discovery import Catalogue, Implementation
from ..kernels.operation import DIRECTIONS, DirectionName
from ..kernels.target import Target
from .cases import wrong_device


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

    @property
    def label(self) -> str:
        return f"{self.implementation}:{self.variant}" if self.variant else self.implementation

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def entries(catalogue: Catalogue, target: Target) -> Iterator[Entry]:
    """Every implementation that was found, in the order it would be measured."""
    for operation in catalogue.operations.values():
        for implementation in catalogue.implementations(operation):
            for direction in DIRECTIONS:
                if operation.has(direction):
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
    return [step.operation for step in chosen.steps(direction)]


def matrix(found: Sequence[Entry]) -> tuple[list[str], list[tuple[str, str, int, list[str]]]]:
    """(implementation labels, rows of (operation, direction, tier, cells)) for a person to read.

    A cell is "yes", "no 1" with the number of its footnote (see `reasons`), or empty where there
    is no such implementation.
    """
    labels = list(dict.fromkeys(entry.label for entry in found))
    notes = reasons(found)
    cells = {
        (entry.operation, entry.direction, entry.label): _cell(entry, notes) for entry in found
    }
    rows = dict.fromkeys((entry.operation, entry.direction, entry.tier) for entry in found)
    return labels, [
        (operation, direction, tier, [cells.get((operation, direction, x), "") for x in labels])
        for operation, direction, tier in rows
    ]


def reasons(found: Sequence[Entry]) -> list[str]:
    """Distinct reasons, in the order of their footnotes."""
    return list(dict.fromkeys(entry.reason for entry in found if entry.reason))


def _cell(entry: Entry, notes: list[str]) -> str:
    word = "yes" if entry.available else "no"
    return f"{word} {notes.index(entry.reason) + 1}" if entry.reason else word
