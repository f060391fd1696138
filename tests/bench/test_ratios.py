"""Ratios measured side by side: what times come to, and what is said at the end. Times are made up,
but for one case that runs."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from membound.bench import ratios, side_by_side
from membound.bench.ratios import Row, judged, main, outcomes, predicted_gain
from membound.bench.side_by_side import Contestant, Taken
from membound.kernels.discovery import discover
from membound.kernels.dtypes import float32
from membound.kernels.operation import DirectionName
from membound.kernels.spec import Spec
from membound.kernels.target import MIB, Target

CATALOGUE = discover()
BYTES = 10**9


def taken(
    seconds: Mapping[str, list[float]], name: str = "silu", direction: DirectionName = "forward"
) -> Taken:
    """Passes over one set of a gigabyte; copies by their read share."""
    operation = CATALOGUE.operations[name]
    dims = {"rows": 4, "columns": 8}
    io = operation.directions(dims, float32).get(direction)
    assert io is not None
    spec = Spec(operation, direction, dims, float32, io, Target("cpu", "x86_64", 1, MIB))
    shares = {"mix_1r1w": 0.5, "mix_2r1w": 2 / 3}
    contestants = {
        one: Contestant([lambda: None], BYTES, shares.get(one, 0.5), allocates=one == "torch")
        for one in seconds
    }
    return Taken(spec, contestants, seconds)


def test_a_ratio_is_the_median_over_passes_and_a_rate_the_bytes_over_the_median() -> None:
    row = judged(
        taken({"cpu": [0.1, 0.2, 0.1], "mix_1r1w": [0.09, 0.18, 0.2], "torch": [0.2, 0.3, 0.4]}),
        None,
    )
    assert row.gb_per_s == 10.0
    assert row.ceiling_share == pytest.approx(0.9)
    assert row.to_eager == 2.0
    assert (row.eager_allocates, row.to_compiled, row.to_unfused) == (True, None, None)
    assert row.met and row.goal == ">= 0.8 of ceiling"


def test_between_two_copies_the_time_per_byte_is_interpolated() -> None:
    times = {"cpu": [1.0], "mix_1r1w": [0.6], "mix_2r1w": [0.9]}
    one = taken(times)
    between = {**one.contestants, "cpu": Contestant([lambda: None], BYTES, 0.6)}
    row = judged(Taken(one.spec, between, times), None)
    assert row.ceiling_share == pytest.approx(0.78)
    assert not row.met


def test_a_fused_operation_is_held_to_what_its_bytes_predict() -> None:
    passes = {"cpu": [1.0], "mix_1r1w": [1.0], "unfused": [1.1]}
    fused = taken(passes, "add_rms_norm")
    gain = predicted_gain(CATALOGUE, fused)
    assert gain is not None and gain > 1
    assert judged(fused, 1.2).met
    assert not judged(fused, 1.25).met
    assert predicted_gain(CATALOGUE, taken(passes)) is None


def row(case: str, eager: float | None, compiled: float | None, allocates: bool = True) -> Row:
    operation, _, direction = case.partition(" ")
    eager_allocates = None if eager is None else allocates
    return Row(
        operation, direction, 1.0, 0.9, eager, eager_allocates, compiled, None, None, "", True
    )


def said(rows: list[Row]) -> list[str]:
    return [line for one in outcomes(rows) for line in one.lines()]


def test_the_end_says_the_means_and_that_no_case_is_below() -> None:
    rows = [row("copy forward", 1.0, 1.0, allocates=False), row("silu forward", 4.0, 1.0)]
    assert said(rows) == [
        "cpu over torch eager: 2.00 in the geometric mean of 2 cases, 1 of them into given "
        "outputs; goal 1.5",
        "  no case below 0.9",
        "cpu over torch.compile, out.copy_(f(x)): 1.00 in the geometric mean of 2 cases; goal 1.0",
        "  no case below 0.9",
    ]
    assert [one.met for one in outcomes(rows)] == [True, True]


def test_every_case_below_is_named_the_worst_first() -> None:
    rows = [
        row("silu forward", 8.0, 0.89),
        row("silu backward", 2.0, 0.5),
        row("gelu forward", 1.0, 4.0),
    ]
    assert said(rows)[2:] == [
        "cpu over torch.compile, out.copy_(f(x)): 1.21 in the geometric mean of 3 cases; goal 1.0",
        "  below 0.9: silu backward 0.50",
        "  below 0.9: silu forward 0.89",
    ]
    assert [one.met for one in outcomes(rows)] == [True, False]


def test_a_mean_below_its_goal_and_a_rival_that_was_not_there() -> None:
    (only,) = outcomes([row("copy forward", 1.2, None), row("read forward", None, None)])
    assert (only.cases, only.met) == (1, False)
    assert outcomes([row("read forward", None, None)]) == []


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "_SET_BYTES", MIB)
    monkeypatch.setattr(ratios, "MIB", 1024)


@pytest.mark.usefixtures("small")
def test_for_real_each_case_is_a_line_and_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "add"]) in {0, 1}
    header, line, mean, *below = capsys.readouterr().out.splitlines()
    assert header.startswith("operation") and line.startswith("add ")
    assert mean.startswith("cpu over torch eager: ") and "1 of them into given outputs" in mean
    assert len(below) == 1 and "below 0.9" in below[0]
    assert main(["--quick", "--json", "add"]) in {0, 1}
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["operation"], found["eager_allocates"]) == ("add", False)
    assert found["to_eager"] > 0 and found["ceiling_share"] > 0 and found["to_compiled"] is None


def test_what_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ad"]) == 2
    assert "unknown operation 'ad'" in capsys.readouterr().out
