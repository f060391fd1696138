"""The study in small: its streams move what they say, its shares are counted right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from membound.analysis.tables import as_text
from membound.bench import run as running
from membound.bench import study
from membound.bench.device.select import Selected, select
from membound.bench.study import AB, OURS, SLOWED, Matched, Tally, Wanted, collect, tables, tally
from membound.kernels.discovery import discover
from membound.kernels.dtypes import float32
from membound.kernels.spec import Spec
from membound.kernels.target import MIB
from membound.results.reading import Run
from membound.tests.generated import environment, processes

STEADY = [1.0, 1.002, 0.998, 1.001, 0.999, 1.0]


@pytest.mark.parametrize(("variant", "more"), [("", 0.0), ("more5", 0.05), ("more10", 0.10)])
@pytest.mark.parametrize("name", ["slowed_copy", "slowed_read", "slowed_add"])
def test_a_slowed_stream_truly_moves_more(name: str, variant: str, more: float) -> None:
    operation = discover([SLOWED]).operations[name]
    dims = {"rows": 200, "columns": 8}
    io = operation.directions(dims, float32).forward
    catalogue = discover([SLOWED])
    (found,) = (i for i in catalogue.implementations(operation, ["torch"]) if i.variant == variant)
    target = select("cpu").target
    prepared = found.prepare(Spec(operation, "forward", dims, float32, io, target, variant=variant))
    tensors = {t.name: torch.zeros(t.shape) for t in (*io.operands.values(), *prepared.scratch)}
    prepared.bind(tensors, None)()
    assert sum(t.traffic for t in prepared.scratch) == pytest.approx(more * io.traffic)
    for tensor in prepared.scratch:
        if tensor.name in ("more_y", "more_sums"):
            assert bool((tensors[tensor.name] != 0).all()), "was not written"


def made_up(factors: dict[str, float], name: str) -> Run:
    """A run of the streams that takes these times, by variant."""
    records = [
        r
        for variant, factor in factors.items()
        for r in processes(
            [1e-3 * factor * s for s in STEADY],
            operation="slowed_copy",
            family="slowed",
            implementation="torch",
            variant=variant,
        )
    ]
    return Run(Path(name), environment(), records)


def match(change: float, case: str) -> Matched:
    return Matched(
        match=0,
        case=case,
        change=change,
        base=[1e-3] * 6,
        current=[1e-3 * (1 + change) * s for s in STEADY],
        tick=1e-9,
        seconds=60.0,
    )


def test_shares_are_those_of_the_truth() -> None:
    truth = {"": 1.0, "more5": 1.05, "more10": 1.10}
    runs = [made_up(truth, "one"), made_up(truth, "two")]
    found = tally(runs, [match(0.0, "a"), match(0.05, "b"), match(0.10, "c")])
    for who in (OURS, AB):
        assert found.share(who, 0.0, "same") == 1
        assert found.share(who, 0.05, "slower") == 1
        assert found.share(who, 0.10, "slower") == 1
        assert found.failed[who] == 0
    assert found.gates[OURS] == 2
    text = "\n".join(as_text(table) for table in tables(found, [match(0.0, "a")]))
    assert "match 1 took 60 s" in text


def test_a_false_alarm_is_counted() -> None:
    truth = {"": 1.0, "more5": 1.05, "more10": 1.10}
    off = {name: 1.2 * factor for name, factor in truth.items()}
    found = tally([made_up(truth, "one"), made_up(off, "two")], [])
    assert found.share(OURS, 0.0, "slower") == 0.5
    assert found.share(OURS, 0.0, "faster") == 0.5
    assert found.failed[OURS] == 1
    assert found.failed["pytest-benchmark median:3%"] == 1
    assert found.share(AB, 0.0, "same") is None


def test_missing_verdicts_are_no_share() -> None:
    assert Tally().share(OURS, 0.0, "slower") is None


@pytest.fixture
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def small(*arguments: object, **names: object) -> Selected:
        selected = select("cpu")
        target = replace(selected.target, llc_bytes=MIB)
        return replace(selected, target=target, memory_budget_bytes=512 * MIB)

    monkeypatch.setattr(running, "select", small)
    monkeypatch.setattr(study, "select", small)
    yield


@pytest.mark.usefixtures("_small_cache")
def test_it_measures_once_and_reads_what_is_stored(tmp_path: Path) -> None:
    wanted = Wanted(
        tmp_path, runs=2, processes=1, matches=1, seconds_per_case=0.01, time_limit=1e-3,
        block_seconds=0.005, rounds=1,
    )  # fmt: skip
    said: list[str] = []
    runs, matches = collect(wanted, said.append)
    assert len(runs) == 2
    assert "run 2 of 2" in said
    assert matches == []  # no time for one
    found = tally(runs, matches)
    assert found.gates[OURS] == 2
    assert found.share(OURS, 0.10, "ambiguous") == 1  # one process says nothing
    said.clear()
    again, _ = collect(replace(wanted, matches=0), said.append)
    assert [run.path for run in again] == [run.path for run in runs]
    assert said == []
