"""What a busy machine measured is set aside, by the reference copy's word and no other."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from membound.analysis.compare import Comparison, compare
from membound.results.reading import Run
from membound.results.record import Record
from membound.tests.generated import environment, record

PROCESSES = 6
SECONDS = 0.001


def side(
    busy: Collection[int] = (), factor: float = 1.0, copies_too: bool = True, name: str = "gpu/run"
) -> Run:
    """A case between two copies in six processes; the busy ones take twice as long for all."""
    records: list[Record] = []
    for process in range(PROCESSES):
        slow = 2.0 if process in busy else 1.0
        wobble = 1 + 0.002 * (process % 3)
        for position, form in enumerate(("memcpy", "cuda", "memcpy")):
            time = SECONDS * wobble
            if form == "cuda":
                time *= factor * slow
            elif copies_too:
                time *= slow
            records.append(
                record(process=process, position=position, implementation=form, seconds=[time] * 3)
            )
    return Run(Path(name), environment(), records)


def verdict(comparison: Comparison) -> tuple[str, str]:
    (row,) = comparison.rows
    return row.verdict, row.reason


def test_a_slow_down_shows_beside_busy_processes() -> None:
    found, reason = verdict(compare([side({4})], [side({0, 1}, factor=1.1)]))
    assert found == "slower"
    assert "1 of 6 baseline times set aside" in reason
    assert "2 of 6 current times set aside: the copy beside them took 2.00 times" in reason


def test_identical_code_is_the_same_beside_busy_processes() -> None:
    assert verdict(compare([side({4})], [side({0, 1})]))[0] == "same"


def test_code_that_is_slow_by_itself_is_never_set_aside() -> None:
    """The copies kept their speed: two slow processes are the code's own."""
    found, reason = verdict(compare([side()], [side({0, 1}, copies_too=False)]))
    assert found == "ambiguous"
    assert "set aside" not in reason


@pytest.mark.parametrize("busy", [range(4), range(6)])
def test_a_machine_that_was_mostly_busy_decides_nothing(busy: Collection[int]) -> None:
    found, reason = verdict(compare([side()], [side(busy)]))
    assert found == "ambiguous"
    assert "set aside" not in reason


def test_runs_without_copies_stay_as_they_are() -> None:
    def alone(run: Run) -> Run:
        return Run(run.path, run.environment, [r for r in run.records if r.position == 1])

    found, reason = verdict(compare([alone(side({4}))], [alone(side())]))
    assert found == "ambiguous"
    assert "set aside" not in reason
