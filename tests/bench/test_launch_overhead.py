"""What a launch costs on the CPU: that of the same implementation with next to no work."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from membound.bench import cases
from membound.bench.device.select import select
from membound.bench.presets import Selection
from membound.bench.protocol import Setting
from membound.bench.run import items_of
from membound.bench.session import Ready, Session, _smallest_dims
from membound.bench.start import start
from membound.kernels.discovery import Implementation
from membound.kernels.spec import CannotPrepare, Prepared, Spec
from membound.kernels.target import MIB

BUDGET = 512 * MIB


@pytest.fixture(scope="module")
def session() -> Session:
    target = replace(select("cpu").target, llc_bytes=MIB)
    return start(
        Setting(
            kind="cpu",
            ordinal=0,
            target=asdict(target),
            default_mhz=None,
            budget_bytes=BUDGET,
            seed=0,
            timer="wall",
            kernels=[],
        )
    )


@pytest.fixture(scope="module")
def ready(session: Session) -> Ready:
    selection = Selection(
        "quick", ("add",), implementations=("torch",), dtypes=("float32",), ceilings=False
    )
    (group,) = cases.plan(session.catalogue, selection, session.target, BUDGET)
    (item,) = items_of([group])
    return session.ready(session.make_group(item), "torch", None)


def test_it_is_far_less_than_the_case_and_leaves_no_memory_taken(
    session: Session, ready: Ready
) -> None:
    before = session.arena.mark()
    sampler = session.sampler(replace(ready, prepare_seconds=0.0), "steady")
    assert sampler.launch_overhead is not None
    # The same function of 2 numbers, where the case moves 64 MiB.
    assert 0 < sampler.launch_overhead < min(filter(None, (sampler.sample() for _ in range(3))))
    assert session.arena.mark() == before
    assert sampler.wrong() is None


def test_the_shape_is_the_smallest_that_is_not_empty(ready: Ready) -> None:
    dims = _smallest_dims(ready.group)
    assert dims is not None
    assert 0 < dims["rows"] * dims["columns"] <= 4


def test_what_took_long_to_prepare_is_not_prepared_again(
    session: Session, ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(self: Implementation, spec: Spec) -> Prepared:
        raise AssertionError("prepared again")

    monkeypatch.setattr(Implementation, "prepare", prepare)
    slow = replace(ready, prepare_seconds=0.01)
    assert session.sampler(slow, "steady").launch_overhead is None


def test_what_cannot_be_prepared_small_has_no_known_overhead(
    session: Session, ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def prepare(self: Implementation, spec: Spec) -> Prepared:
        asked.append(spec.dims)
        raise CannotPrepare("columns must be a multiple of 8")

    monkeypatch.setattr(Implementation, "prepare", prepare)
    before = session.arena.mark()
    quick = replace(ready, prepare_seconds=0.0)
    assert session.sampler(quick, "steady").launch_overhead is None
    assert asked == [_smallest_dims(ready.group)]
    assert session.arena.mark() == before
