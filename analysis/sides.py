"""The two sides of a comparison with every run once: a run counted twice is false evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..results.reading import Run


@dataclass(frozen=True)
class Sides:
    """Runs of both sides; notes: what was left out of them and why, a line each."""

    base: list[Run]
    current: list[Run]
    notes: list[str]


def same_run(one: Run, other: Run) -> bool:
    """Whether both are one run, or one is a copy of the other: name, environment and records."""
    ours, theirs = one.path.resolve(), other.path.resolve()
    return ours == theirs or (
        ours.name == theirs.name
        and one.environment == other.environment
        and one.records == other.records
    )


def told_apart(base: Sequence[Run], current: Sequence[Run]) -> Sides:
    """Both sides without copies; what is on both sides belongs to the current one.

    A baseline that is all current keeps its runs: whoever compares a run with itself is told.
    """
    notes: list[str] = []
    base, current = _once(base, notes), _once(current, notes)
    both = [run for run in base if any(same_run(run, other) for other in current)]
    if len(both) == len(base):
        notes += [f"{run.path} is compared with itself" for run in both]
        return Sides(base, current, notes)
    notes += [f"{run.path} is on both sides: left out of the baseline" for run in both]
    return Sides([run for run in base if run not in both], current, notes)


def _once(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    kept: list[Run] = []
    for run in runs:
        first = next((other for other in kept if same_run(run, other)), None)
        if first is None:
            kept.append(run)
        else:
            notes.append(f"{run.path} is a copy of {first.path}: counted once")
    return kept
