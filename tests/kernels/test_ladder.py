"""Steps of kernel ladders: right as any kernel is, and as wasteful as they say they are.

MEMBOUND_AUDIT=all runs every dtype and shape instead of one dtype at a whole and a ragged shape.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from membound.bench.verify import verify
from membound.kernels.discovery import Catalogue, Implementation, discover
from membound.kernels.dtypes import bfloat16
from membound.kernels.inputs import evaluate
from membound.kernels.operation import Tensor
from membound.kernels.spec import Prepared
from membound.kernels.tolerance import compare
from membound.tests.emulator.cases import SMALL_GB10, Case, blank, cases, place
from membound.tests.emulator.layout import Traffic
from membound.tests.emulator.toolchain import EmulatorToolchain, Libraries, Planner

LADDERS = {
    "copy": ("forward", ["naive", "vector", "unrolled"]),
    "rms_norm": ("forward", ["naive", "shared", "vector", "registers"]),
    "softmax": ("forward", ["naive", "shared", "vector", "registers"]),
    "layer_norm": ("backward", ["naive", "shared", "vector", "registers"]),
    "max_pool2d": ("forward", ["naive", "shared", "vector"]),
    "add_rms_norm": ("forward", ["naive", "shared", "vector", "registers"]),
}

EVERY = os.environ.get("MEMBOUND_AUDIT") == "all"
CATALOGUE = discover()


def usual(case: Case) -> bool:
    return case.spec.dtype == bfloat16 and case.kind in {"scaled", "ragged"}


CASES = [case for case in cases(CATALOGUE, steps=True) if EVERY or usual(case)]
WHOLE = [case for case in CASES if usual(case) and case.kind == "scaled"]
RAGGED = [case for case in CASES if usual(case) and case.kind == "ragged"]
WIDE = [
    case
    for case in cases(CATALOGUE, SMALL_GB10, steps=True)
    if usual(case) and case.spec.operation.name == "copy"
]
"""Where a vector is 32 bytes."""


def each(found: Sequence[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", found, ids=[case.name for case in found])


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    planned = Libraries()
    for case in (*CASES, *WIDE):
        case.on(Planner(planned))
    planned.compile()
    return planned


def bound(
    case: Case, toolchain: EmulatorToolchain, offset: int = 0
) -> tuple[Prepared, dict[str, torch.Tensor], Callable[[], object]]:
    """What was prepared, its buffers `offset` elements past an aligned address, the launch."""
    prepared = case.on(toolchain)
    given = case.inputs()
    buffers = {t.name: place(t, given[t.name], offset) for t in case.spec.io.reads}
    buffers |= {t.name: blank(t, offset) for t in (*case.spec.io.outputs, *prepared.scratch)}
    return prepared, buffers, prepared.bind(buffers, None)


def wrong(case: Case, toolchain: EmulatorToolchain, offset: int = 0) -> str | None:
    _, buffers, run = bound(case, toolchain, offset)

    def launch() -> None:
        toolchain.seed += 1
        run()

    io = case.spec.io
    pristine = {tensor.name: buffers[tensor.name].clone() for tensor in io.reads}
    exact = evaluate(io, pristine)
    reason = verify(io, launch, buffers, pristine, exact, lambda: None, blank).reason
    saved = [compare(t, buffers[t.name], exact[t.name]) for t in io.saves if t.elements]
    return reason or next((str(one) for one in saved if not one.ok), None)


@each([*CASES, *WIDE])
def test_every_step_agrees_with_float64(case: Case, libraries: Libraries) -> None:
    assert wrong(case, EmulatorToolchain(libraries, count=False)) in {
        None,
        "writes nothing that can be checked",
    }


@each(RAGGED)
def test_every_step_agrees_where_no_operand_is_aligned(case: Case, libraries: Libraries) -> None:
    assert wrong(case, EmulatorToolchain(libraries, count=False), offset=1) is None


@each(RAGGED)
def test_not_a_number_and_infinity_stand_where_they_should(
    case: Case, libraries: Libraries
) -> None:
    _, buffers, run = bound(case, EmulatorToolchain(libraries, count=False))
    io = case.spec.io
    for value in (buffers[t.name].view(-1) for t in io.reads if len(t.shape) > 1):
        value[0], value[len(value) // 2], value[-1] = torch.nan, torch.inf, -torch.inf
    run()
    exact = evaluate(io, {t.name: buffers[t.name] for t in io.reads})
    for tensor in io.writes:
        got, expected = buffers[tensor.name].double(), exact[tensor.name].double()
        assert torch.equal(got.isnan(), expected.isnan()), tensor.name
        assert torch.equal(got.isposinf(), expected.isposinf()), tensor.name
        assert torch.equal(got.isneginf(), expected.isneginf()), tensor.name


@each([case for case in WHOLE if case.spec.operation.name == "max_pool2d"])
def test_the_first_of_equals_wins_and_a_window_of_minus_infinity_has_a_place(
    case: Case, libraries: Libraries
) -> None:
    _, buffers, run = bound(case, EmulatorToolchain(libraries, count=False))
    x = buffers["x"].round_()
    x[0, 0] = -torch.inf
    run()
    exact = evaluate(case.spec.io, {"x": x})
    assert torch.equal(buffers["y"].double(), exact["y"])
    assert torch.equal(buffers["offset"], exact["offset"])


@pytest.mark.skipif(not EVERY, reason="MEMBOUND_AUDIT=all")
def test_sanitizers_find_nothing() -> None:
    planned = Libraries()
    for case in RAGGED:
        case.on(Planner(planned))
    planned.compile(sanitize=True)
    toolchain = EmulatorToolchain(planned, sanitize=True)
    assert {case.name: wrong(case, toolchain) for case in RAGGED} == {c.name: None for c in RAGGED}


def asked_for(case: Case, toolchain: EmulatorToolchain) -> tuple[int, int | None, list[Traffic]]:
    """(bytes that a launch asks for, the bytes it states, what its launches moved).

    What every row or window reads again from the caches, a parameter or its neighbours, counts
    once a launch; matrices count as often as they are asked for. Partial sums are left out.
    """
    prepared, buffers, run = bound(case, toolchain)
    run()
    moved, found = 0, []
    for tensor in case.spec.io.operands.values():
        for one in toolchain.launches:
            if (traffic := one.traffic.get(buffers[tensor.name].data_ptr())) is not None:
                found.append(traffic)
                moved += _bytes(tensor, traffic)
    return moved, prepared.schedule_bytes, found


def _bytes(tensor: Tensor, traffic: Traffic) -> int:
    if len(tensor.shape) == 2:
        return traffic.loaded + traffic.stored
    return traffic.unique_loaded + traffic.unique_stored


def understated(asked: int, stated: int | None, stated_by_operation: int) -> bool:
    return asked != (stated if stated is not None else stated_by_operation)


@each(WHOLE)
def test_every_step_states_what_it_reads_again(case: Case, libraries: Libraries) -> None:
    asked, stated, _ = asked_for(case, EmulatorToolchain(libraries))
    assert not understated(asked, stated, case.spec.io.scheduled), (asked, stated)
    if case.spec.variant == "naive" and case.spec.dims.get("columns") and stated:
        assert understated(asked, None, case.spec.io.scheduled)  # silence would be noticed


def waste(case: Case, libraries: Libraries) -> tuple[int, float]:
    """(bytes asked for, sectors over the fewest that hold an access)."""
    asked, _, found = asked_for(case, EmulatorToolchain(libraries))
    touched = sum(t.load_sectors + t.store_sectors for t in found)
    return asked, touched / sum(t.load_ideal + t.store_ideal for t in found)


@pytest.mark.parametrize("name", LADDERS)
def test_no_step_wastes_more_than_the_one_before(name: str, libraries: Libraries) -> None:
    steps = [case for case in WHOLE if case.spec.operation.name == name]
    bytes_, sectors = zip(*(waste(case, libraries) for case in steps), strict=True)
    assert list(bytes_) == sorted(bytes_, reverse=True)
    assert bytes_[-1] == steps[0].spec.io.scheduled  # as the default, which has the test of its own
    if name not in ("copy", "max_pool2d"):  # theirs are coalesced from the first on
        assert sectors[0] > 2
        assert max(sectors[1:]) < 1.1
        assert bytes_[0] > bytes_[-1]


def steps_of(catalogue: Catalogue, name: str) -> list[Implementation]:
    found = catalogue.implementations(catalogue.operations[name], ["cuda"])
    return [one for one in found if one.is_step]


def test_ladders_are_these(catalogue: Catalogue) -> None:
    found: Mapping[str, list[Implementation]] = {
        name: some for name in catalogue.operations if (some := steps_of(catalogue, name))
    }
    names = {name: [one.variant for one in some] for name, some in found.items()}
    assert names == {name: steps for name, (_, steps) in LADDERS.items()}
    for name, (direction, steps) in LADDERS.items():
        whole = catalogue.default(name, "cuda")
        assert whole is not None and whole.ladder is not None and not whole.is_step
        assert whole.ladder.step(direction, "") == len(steps) + 1
        for number, one in enumerate(found[name], 1):
            assert whole.ladder.step(direction, one.variant) == number
            other = "backward" if direction == "forward" else "forward"
            assert whole.ladder.step(other, one.variant) is None
            assert one.has(direction) and not one.has(other)
            if catalogue.operations[name].has(other):
                assert one.refuses(other, "float32") == (
                    f"{one.label} has no {other}: it is a step of the other one's ladder"
                )


def test_a_row_that_begins_nowhere_is_refused_by_name(libraries: Libraries) -> None:
    (case,) = (
        one
        for one in WHOLE
        if (one.spec.operation.name, one.spec.variant) == ("layer_norm", "registers")
    )
    with pytest.raises(ValueError, match="dy must begin on 16 bytes; copy the slice"):
        bound(case, EmulatorToolchain(libraries), offset=1)
