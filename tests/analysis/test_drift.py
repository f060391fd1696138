"""Drift: found and removed where the copies show it, left alone where they show noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.analysis import bandwidth as script
from membound.analysis.bandwidth import Achieved, achieved
from membound.analysis.cases import cases
from membound.analysis.compare import compare
from membound.analysis.drift import MARGIN, REFERENCE, Drift, corrected, drifts
from membound.analysis.loading import frame
from membound.analysis.report import report
from membound.bench.records import MEMCPY
from membound.results.reading import Run
from membound.results.record import Record
from membound.tests.generated import MIB, environment, record, run

Slow = Callable[[int, int], float]
"""(process, position) -> by which factor the machine, or what else, is slower there."""

GROUPS, FORMS, PROCESSES = 8, ("cuda", "torch"), 3
SECONDS = 0.001
RAMP = 0.03


def walk(
    cases: Slow, copies: Slow, processes: int = PROCESSES, groups: int = GROUPS, **changes: Any
) -> list[Record]:
    """Groups of two implementations and a copy after each, odd processes from back to front."""
    made = []
    for process in range(processes):
        position = 0
        for group in range(groups):
            for form in FORMS if process % 2 == 0 else FORMS[::-1]:
                time = SECONDS * cases(process, position)
                fields = {"operation": f"op{group}", "family": "activation", "position": position}
                made.append(
                    record(
                        process=process, implementation=form, seconds=[time], **fields, **changes
                    )
                )
                position += 1
            time = SECONDS * copies(process, position)
            made.append(copy(process, position, seconds=[time], **changes))
            position += 1
    return made


def copy(process: int, position: int, **changes: Any) -> Record:
    return record(implementation="memcpy", process=process, position=position, **changes)


def table(records: Sequence[Record]) -> Any:
    return frame([Run(Path("gpu/run"), environment(), list(records))])


def only(records: Sequence[Record]) -> Drift:
    (found,) = drifts(table(records))
    return found


def rows(records: Sequence[Record]) -> dict[str, Achieved]:
    made = table(records)
    return {row.case: row for row in achieved(cases(corrected(made, drifts(made))))}


def steady(process: int, position: int) -> float:
    return 1.0


def ramp(process: int, position: int) -> float:
    """Process 0 becomes slower, process 1 faster, the last one stays."""
    return math.exp((RAMP, -RAMP / 2, 0.0)[process] * (position - 11))


def noise(seed: int, size: float = 0.05) -> Slow:
    draw = Random(seed)
    return lambda process, position: math.exp(draw.gauss(0, size))


def test_drift_is_found_and_removed() -> None:
    found = only(walk(ramp, ramp))
    assert found.applied
    assert found.spread is not None and found.corrected_spread is not None
    assert found.corrected_spread < 0.2 * found.spread
    assert "corrected for drift to the mean of the run, which took the spread" in found.why
    for row in rows(walk(ramp, ramp)).values():
        if row.implementation != "memcpy":
            assert row.spread is not None
            # What the ends leave: there is no copy before the first group.
            assert row.spread < (0.05 if row.operation == "op0" else 1e-9)


def test_a_process_on_a_slower_machine_is_drift_only_where_times_follow_the_copy() -> None:
    def slower(process: int, position: int) -> float:
        return ramp(process, position) * (1.0, 1.4, 0.8)[process]

    found = only(walk(slower, slower))
    assert (found.mean, found.applied) == ("run", True)
    assert found.corrected_spread is not None and found.corrected_spread < 0.03

    # The same levels in times and copies, and nothing else in common: buffers, not the machine.
    def placed(seed: int) -> Slow:
        jitter = noise(seed, 0.02)
        return lambda process, position: (1.0, 1.4, 0.8)[process] * jitter(process, position)

    found = only(walk(placed(1), placed(2)))
    assert not found.applied
    assert "times do not follow the copy" in found.why


def test_copies_placed_differently_leave_the_mean_of_the_process() -> None:
    def placed(process: int, position: int) -> float:
        return ramp(process, position) * (1.0, 1.4, 0.8)[process]

    found = only(walk(ramp, placed))
    assert (found.mean, found.applied) == ("process", True)
    assert "to the mean of the process" in found.why


def test_noise_is_not_corrected() -> None:
    kept = [only(walk(noise(seed), noise(1000 + seed))) for seed in range(60)]
    assert sum(found.applied for found in kept) <= 1
    assert all("not corrected: it would" in found.why for found in kept if not found.applied)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        # A copy that moves alone, and one that moves the other way.
        (walk(steady, ramp), "it would not reduce the spread, but take the spread between"),
        (walk(ramp, lambda p, i: 1 / ramp(p, i)), "it would not reduce the spread"),
        # Nothing moves at all.
        (walk(steady, steady), "it would not reduce the spread"),
        # Times move with the copies, and far more without them.
        (
            walk(lambda p, i: ramp(p, i) * (1, 9, 3)[p] ** (1 if i % 2 else -1), ramp),
            "it would only take the spread",
        ),
        # One process has nothing to be compared with.
        (walk(ramp, ramp, processes=1), "no DRAM-sized case in two processes"),
        # What a cache serves does not follow the memory.
        (walk(ramp, ramp, bytes_read=MIB, bytes_written=MIB), "no DRAM-sized case"),
    ],
)
def test_what_does_not_pay_is_not_corrected(records: list[Record], said: str) -> None:
    found = only(records)
    assert not found.applied
    assert "not corrected" in found.why
    assert said in found.why
    made = table(records)
    assert corrected(made, [found]) is made


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (lambda r: None, "process 1 has no reference copy; not corrected"),
        (
            lambda r: replace_copy(r, "failed", "timer: negative"),
            "process 1 has no reference copy, one failed: timer: negative; not corrected",
        ),
        (
            lambda r: replace_copy(r, "wrong", "the copy differs"),
            "process 1 has no reference copy, one wrong: the copy differs; not corrected",
        ),
        (
            lambda r: r if r.position == 2 else None,
            "process 1 has one reference copy; not corrected",
        ),
    ],
)
def test_copies_that_are_missing_or_failed_make_drift_unknown(
    lost: Callable[[Record], Record | None], said: str
) -> None:
    changed = [
        lost(entry) if entry.implementation == "memcpy" and entry.process == 1 else entry
        for entry in walk(ramp, ramp)
    ]
    found = only([entry for entry in changed if entry is not None])
    assert not found.applied
    assert found.unknown is not None
    assert found.line.endswith(f"drift unknown: {said}")
    assert found.line.startswith("-")  # the other processes still show theirs


def replace_copy(entry: Record, status: str, reason: str) -> Record:
    return copy(entry.process, entry.position, status=status, reason=reason)


def test_one_failed_copy_of_many_is_interpolated_over() -> None:
    records = walk(ramp, ramp)
    whole = {case: row.gb_per_s for case, row in rows(records).items()}
    lost = [
        replace_copy(entry, "failed", "x")
        if (entry.implementation, entry.process, entry.position) == ("memcpy", 0, 11)
        else entry
        for entry in records
    ]
    found = only(lost)
    assert found.unknown is None
    assert found.applied
    for case, row in rows(lost).items():
        assert row.gb_per_s == pytest.approx(whole[case], rel=0.03)


def test_wrong_cases_have_no_say() -> None:
    records = walk(ramp, ramp)
    spoilt = [
        *records,
        *(record(operation="bad", process=p, position=1, seconds=[(p + 1) * 1.0]) for p in (0, 1)),
        record(operation="bad", process=2, position=1, status="wrong", reason="row 3"),
    ]
    assert only(spoilt).spread == pytest.approx(only(records).spread)


def test_range_trend_and_place() -> None:
    speeds = (1.0, 1.1, 1.21, 1.331)
    records = [copy(0, 3 * i, seconds=[SECONDS / s]) for i, s in enumerate(speeds)]
    course = only([*records, record(operation="silu", position=1)]).courses[0]
    assert course.low == pytest.approx(1.1**-1.5 - 1)
    assert course.high == pytest.approx(1.1**1.5 - 1)
    assert course.moved == pytest.approx(0.331)
    assert course.trend == pytest.approx(0.331)
    assert course.at(3) == pytest.approx(math.log(1.1) * -0.5)
    assert course.at(5) == pytest.approx(math.log(1.1) * (-0.5 + 2 / 3))
    assert (course.at(-4), course.at(99)) == (course.at(0), course.at(9))
    two = only([*records[:2], record(operation="silu", position=1)])
    assert two.courses[0].trend is None
    assert "trend unknown" in two.line


def test_one_outlier_is_no_trend() -> None:
    records = [copy(0, i, seconds=[SECONDS * (3 if i == 8 else 1)]) for i in range(9)]
    course = only([*records, record(operation="silu", position=9)]).courses[0]
    assert course.trend == pytest.approx(0)
    assert course.moved == pytest.approx(2)


def test_cache_states_and_runs_are_judged_apart() -> None:
    cold = walk(ramp, ramp)
    other = [replace_cache(entry) for entry in walk(noise(1), noise(2))]
    made = table([*cold, *other])
    found = drifts(made)
    assert [(drift.cache, drift.applied) for drift in found] == [("cold", True), ("steady", False)]
    after = corrected(made, found)
    untouched = after["cache"] == "steady"
    assert after[untouched].equals(made[untouched])
    copies = made["implementation"] == "memcpy"
    assert after[copies].equals(made[copies])
    assert not after[~untouched & ~copies].equals(made[~untouched & ~copies])
    assert list(after.columns) == list(made.columns)
    product = after["gb_per_s"] * after["median_seconds"]
    assert product.tolist() == pytest.approx([2**30 / 1e9] * len(product))


def replace_cache(entry: Record) -> Record:
    case = entry.case.replace("/cold", "/steady")
    return record(
        **{name: getattr(entry, name) for name in ("operation", "family", "implementation")},
        process=entry.process, position=entry.position, seconds=entry.seconds, cache="steady",
        footprint_bytes=1024 * MIB, case=case,
    )  # fmt: skip


def test_nothing_measured_has_no_drift() -> None:
    assert drifts(table([])) == []
    assert drifts(table([copy(0, 0), copy(0, 1)])) == []
    assert drifts(table([record(status="failed"), copy(0, 1)])) == []


def test_the_report_says_it_and_warns(tmp_path: Path) -> None:
    path = run(tmp_path / "ramp", walk(ramp, ramp))
    text = report([path]).text
    (line,) = (line for line in text.splitlines() if line.startswith("Reference copy, cold: "))
    assert "over process 0, trend -46.7%; corrected for drift" in line
    assert text.count("corrected for drift to the mean of the run, which took the spread") == 2
    warned = " ".join(text[text.index("Warnings") :].split())
    assert "the reference copy, cold, moved by 88% over process 0" in warned
    assert "figures are corrected for it" in warned
    assert "Reference copy, cold" in report([path], form="markdown").text
    calm = report([run(tmp_path / "calm", walk(noise(1, 0.01), noise(2, 0.01)))]).text
    assert "not corrected: it would" in calm
    assert "moved by" not in calm
    assert "corrected for drift" not in calm


def test_the_script_corrects_what_the_report_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(run(tmp_path, walk(ramp, ramp)))
    assert script.main([path]) == 0
    shown = capsys.readouterr().out
    assert "corrected for drift to the mean of the run" in shown
    assert shown.splitlines()[2] in report([path]).text


def test_compare_is_of_times_as_measured() -> None:
    def gentle(process: int, position: int) -> float:
        return math.sqrt(ramp(process, position))  # nothing that is set aside as busy

    drifted = Run(Path("gpu/a"), environment(), walk(gentle, gentle))
    assert only(drifted.records).applied
    measured = {
        case.case: median(case.medians.values())
        for case in cases(frame([drifted]))
        if case.implementation != REFERENCE
    }
    rows = compare([drifted], [drifted]).rows
    assert {row.case: row.base_seconds for row in rows} == measured
    assert {row.case: row.current_seconds for row in rows} == measured


def test_the_reference_is_what_bench_records() -> None:
    assert REFERENCE == MEMCPY


@settings(max_examples=30, deadline=None)
@given(factor=st.floats(1e-3, 1e3), seed=st.integers(0, 5), drifting=st.booleans())
def test_units_and_order_change_nothing(factor: float, seed: int, drifting: bool) -> None:
    jitter, own = noise(seed, 0.02), noise(seed + 50, 0.02)
    common = ramp if drifting else steady
    records = walk(
        lambda p, i: common(p, i) * jitter(p, i), lambda p, i: common(p, i) * own(p, i), groups=5
    )
    first = only(records)
    scaled = [
        record(
            **{name: getattr(e, name) for name in ("operation", "family", "implementation")},
            process=e.process, position=e.position, seconds=[s * factor for s in e.seconds],
        )
        for e in records
    ]  # fmt: skip
    Random(seed).shuffle(scaled)
    second = only(scaled)
    assert (second.mean, second.why) == (first.mean, first.why)
    assert second.spread == pytest.approx(first.spread)
    if first.applied:
        assert first.corrected_spread is not None and first.spread is not None
        assert first.corrected_spread <= (1 - MARGIN) * first.spread
    assert replace(second, courses={}).line.endswith(second.why)
