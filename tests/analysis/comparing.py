"""Two sides of a comparison, made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from membound.analysis.compare import Comparison, compare
from membound.analysis.tables import as_text, compare_tables
from membound.results.reading import Run
from membound.results.record import Environment, Record
from membound.tests.generated import environment, processes

STEADY = [1.0, 1.001, 0.999, 1.0005, 0.9995, 1.0]


def side(records: Sequence[Record], env: Environment | None = None, name: str = "gpu/run") -> Run:
    return Run(Path(name), env or environment(), list(records))


def times(factor: float = 1.0, **changes: Any) -> list[Record]:
    return processes([0.001 * factor * x for x in STEADY], **changes)


def against(base: Sequence[Record], current: Sequence[Record], **changes: Any) -> Comparison:
    return compare([side(base)], [side(current)], **changes)


def verdicts(comparison: Comparison) -> dict[str, str]:
    return {row.case.split("/")[0]: row.verdict for row in comparison.rows}


def shown(comparison: Comparison) -> str:
    return as_text(compare_tables(comparison)[0])
