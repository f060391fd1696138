"""Kernel ladders in a report: steps in their order, each with what it gained. Times are made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from membound.analysis.figures.figure import Figure
from membound.analysis.fusion import gains
from membound.analysis.loading import read
from membound.analysis.report.answer import answer
from membound.analysis.report.content import sections
from membound.analysis.report.head import judged
from membound.analysis.report.ladders import climbed, ladders
from membound.analysis.report.ratios import savings
from membound.analysis.report.section import Folded
from membound.analysis.report.told import Told, best, layers, tell
from membound.results.record import Record
from membound.tests.generated import environment, processes, record, run

STEPS = {"naive": 0.012, "vector": 0.004, "unrolled": 0.0025, "": 0.002}
"""Seconds of the steps of a ladder: gains of 3, 1.6 and 1.25, of 6 in all."""


def ladder(seconds: dict[str, float] = STEPS, **changes: object) -> list[Record]:
    """In an order of its own: files hold what a process measured first."""
    fields = {"operation": "rms_norm", "family": "normalization"} | changes
    made = [
        processes([time] * 3, variant=name, ladder_step=list(STEPS).index(name) + 1, **fields)
        for name, time in seconds.items()
    ]
    return [one for some in reversed(made) for one in some]


def told(tmp_path: Path, records: Sequence[Record]) -> Told:
    return tell(read([run(tmp_path, records, environment())]))[0]


def figures(one: Told) -> list[Figure]:
    return [part for part in ladders([one]).parts if isinstance(part, Figure)]


def table(one: Told) -> list[dict[str, str]]:
    (found,) = (part.table for part in ladders([one]).parts if isinstance(part, Folded))
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def test_steps_stand_in_their_order_with_what_each_gained(tmp_path: Path) -> None:
    rows = table(told(tmp_path, ladder()))
    assert [row["name"] for row in rows] == ["naive", "vector", "unrolled", "default"]
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    assert [row["gain"] for row in rows] == ["–", "3.00x", "1.60x", "1.25x"]
    assert [row["over the first"] for row in rows] == ["–", "3.00x", "4.80x", "6.00x"]


def test_the_figure_shows_the_gain_and_says_which_step_bought_most(tmp_path: Path) -> None:
    (figure,) = figures(told(tmp_path, ladder()))
    assert figure.concludes == (
        "From the first step to the last is 6.00x at the median. One step bought most in rms_norm "
        "fwd cuda: vector, 3.00x; 0 of 3 steps made a kernel slower."
    )
    lines = [
        line
        for lines in figure.draw().to_dict()["datasets"].values()
        for line in lines
        if line.get("label")
    ]
    assert [(line["label"], line["beside"]) for line in lines] == [
        ("naive", ""),
        ("vector", "3.00x"),
        ("unrolled", "1.60x"),
        ("default", "1.25x"),
    ]


def test_a_step_that_is_slower_is_said_to_be(tmp_path: Path) -> None:
    (figure,) = figures(told(tmp_path, ladder(STEPS | {"unrolled": 0.005})))
    assert "1 of 3 steps made a kernel slower" in figure.concludes


def test_a_step_without_a_figure_is_a_hole_and_gains_are_over_the_one_before(
    tmp_path: Path,
) -> None:
    there = {name: time for name, time in STEPS.items() if name != "vector"}
    lost = record(
        operation="rms_norm", family="normalization", variant="vector", ladder_step=2,
        status="wrong", reason="y is off by 1",
    )  # fmt: skip
    rows = table(told(tmp_path, [*ladder(there), lost]))
    assert [(row["name"], row["gain"], row["verdict"]) for row in rows][:3] == [
        ("naive", "–", "below-ceiling"),
        ("vector", "–", "wrong"),
        ("unrolled", "4.80x", "below-ceiling"),
    ]


def test_where_nothing_was_measured_nothing_is_gained(tmp_path: Path) -> None:
    failed = [
        record(variant=name, ladder_step=step, status="failed", reason="no nvrtc")
        for step, name in enumerate(("naive", "vector"), 1)
    ]
    (figure,) = figures(told(tmp_path, failed))
    assert figure.concludes == "No two steps of a kernel have a figure."
    assert [step.gain for step in climbed([])] == []


@pytest.mark.parametrize(
    "records",
    [
        processes([0.002] * 3, ladder_step=4),
        [*processes([0.002] * 3), *processes([0.003] * 3, variant="out")],
    ],
)
def test_a_default_form_alone_or_beside_other_variants_is_no_ladder(
    tmp_path: Path, records: list[Record]
) -> None:
    assert ladders([told(tmp_path, records)]).parts == []


def test_steps_are_neither_ranked_nor_fused_nor_compared_by_type(tmp_path: Path) -> None:
    fused = {"operation": "add_rms_norm", "family": "fused", "unfused_bytes": 4 << 30}
    ceiling = processes([0.0018] * 3, operation="mix_1r1w", family="copy")
    both = [*ladder(**fused), *ladder(dtype="bfloat16", **fused)]  # type: ignore[arg-type]
    one = told(tmp_path, [*ceiling, *both])
    assert {gain.fused for gain in gains(one.found)} == {"cuda"}
    assert {saving.narrow.form for saving in savings(one.rows)} == {"cuda"}
    tops = [top for top in map(best, layers(one.rows).values()) if top]
    assert {top.variant for top in tops} == {""}
    assert "naive" not in " ".join(answer(one))
    limits = judged(one.rows)
    assert limits is None or "naive" not in str(limits.rows)
    titles = [section.title for section in sections([one], None)]
    assert "Kernel ladders: the same kernel, step by step" in titles
