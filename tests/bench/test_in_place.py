"""Inputs that are written over: restored outside the clock, and never another kernel's fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from membound.bench.eviction import CpuEvictor
from membound.bench.protocol import Item
from membound.bench.session import Ready, Sampler, Session
from membound.bench.start import start
from membound.bench.verify import same_bytes
from membound.results.record import Cache, Record
from membound.tests.bench.walking import records, setting, walk_of

FAULTY = Path(__file__).parent / "faulty"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Whether the cache of the machine that runs this can be emptied does not matter here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuEvictor, "prove", lambda evictor: None)
        yield start(setting(FAULTY))


def item(operation: str, *labels: str) -> Item:
    return Item(
        operation=operation,
        direction="forward",
        dtype="float32",
        dims={"rows": 512, "columns": 96},
        caches=["cold", "steady"],
        implementations=list(labels),
        positions=[0] * len(labels),
        skips={},
        memcpy_position=0,
    )


def walked(session: Session, *labels: str) -> dict[tuple[str, str], Record]:
    """Records by implementation and cache state."""
    items = [item("shift", *labels)]
    done = records(session, walk_of(setting(FAULTY), items, item("copy", "memcpy")))
    some = [record for record in done if record.operation == "shift"]
    found: dict[tuple[str, str], Record] = {(r.case.split("/")[2], r.cache): r for r in some}
    assert len(found) == len(some)
    return found


def test_it_is_timed_cold_on_inputs_that_are_restored(session: Session) -> None:
    found = walked(session, "cpu:in_place", "cpu")
    record = found["cpu:in_place", "cold"]
    assert (record.status, record.in_place, record.allocates) == ("ok", True, False)
    assert record.seconds
    assert record.footprint_bytes == record.bytes_read
    refused = found["cpu:in_place", "steady"]
    assert (refused.status, refused.seconds) == ("skipped", [])
    assert refused.reason == "writes over x, which nothing restores between back-to-back launches"
    for cache in ("cold", "steady"):
        after = found["cpu", cache]
        assert (after.status, after.in_place) == ("ok", False)


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("cpu:undeclared", "y: error"),
        ("cpu:not_in_place", "y: error"),
        ("cpu:modified_input", "input x was modified"),
    ],
)
def test_who_writes_over_its_inputs_unasked_alone_is_wrong(
    session: Session, label: str, reason: str
) -> None:
    found = walked(session, label, "cpu")
    assert found[label, "cold"].status == "wrong"
    assert (found[label, "cold"].reason or "").startswith(reason)
    assert found["cpu", "cold"].status == found["cpu", "steady"].status == "ok"


def test_inputs_that_are_not_restored_are_noticed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("membound.bench.session.restore", lambda *_: None)
    found = walked(session, "cpu:in_place")
    assert found["cpu:in_place", "cold"].status == "wrong"
    assert found["cpu:in_place", "cold"].reason == (
        "after timing: y differs from its verified bytes"
    )


def test_restoring_is_outside_the_clock(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each sample, and so before the cache is emptied."""
    group = session.make_group(item("shift"))
    ready = session.ready(group, "cpu:in_place", None)
    seen: list[str] = []
    cold = session.timing.cold

    def timed(launch: object) -> object:
        sample = cold(launch)  # type: ignore[arg-type]

        def noted() -> float | None:
            intact = same_bytes(ready.sets[0]["x"], group.pristine["x"])
            seen.append("restored" if intact else "written over")
            return sample()

        return noted

    monkeypatch.setattr(session.timing, "cold", timed)
    sampler = session.sampler(ready, "cold")
    assert all(sampler.sample() for _ in range(3))
    assert seen == ["restored"] * 3
    assert sampler.wrong() is None
    assert torch.equal(ready.sets[0]["x"], group.pristine["x"] + 1)
    group.restore()
    assert torch.equal(ready.sets[0]["x"], group.pristine["x"])


@pytest.mark.parametrize(("timer", "gated"), [("events", True), ("events-ungated", False)])
def test_a_launch_that_waits_for_the_device_cannot_be_behind_a_gate(
    session: Session, monkeypatch: pytest.MonkeyPatch, timer: str, gated: bool
) -> None:
    ready = session.ready(session.make_group(item("shift")), "cpu", None)
    monkeypatch.setattr(session.timing, "timer", timer)
    waiting = replace(ready, prepared=replace(ready.prepared, waits=True))
    assert session.refuses(ready, "cold") is None
    reason = session.refuses(waiting, "cold")
    assert (reason is not None) == gated
    assert reason is None or reason.startswith("waits for the device within a launch")


def test_what_one_cache_state_ends_in_leaves_the_other_alone(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = session.sampler

    def broken(ready: Ready, cache: Cache) -> Sampler:
        if cache == "steady":
            raise RuntimeError("launches cannot follow one another")
        return sampler(ready, cache)

    monkeypatch.setattr(session, "sampler", broken)
    found = walked(session, "cpu")
    assert found["cpu", "cold"].status == "ok"
    assert found["cpu", "steady"].reason == "RuntimeError: launches cannot follow one another"
