"""Comparing runs: what may not pass, what may not fail, and the exit code that says which."""

from __future__ import annotations

import random
from pathlib import Path
from random import Random
from typing import Any

import pytest
from membound.analysis.compare import Comparison, compare, main
from membound.analysis.judge import DECIDED, Pair, judged
from membound.analysis.tables import as_text, compare_tables
from membound.results.record import Record
from membound.results.store import MEASUREMENTS
from membound.tests.analysis.comparing import STEADY, against, shown, side, times, verdicts
from membound.tests.generated import processes, record, run

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("base", "current"),
    [(1, NAN), (NAN, 1), (1, 0), (0, 1), (0, 0), (1, None), (None, 1), (-5, 1), (INF, 1), (1, INF)],
)
def test_what_is_no_time_never_passes(base: Any, current: Any) -> None:
    pair = Pair("c", [base] * 6, [current] * 6)
    (row,) = judged([pair])
    assert row.verdict == "incomparable"
    assert (row.ratio, row.low, row.high) == (None, None, None)
    assert Comparison([row]).exit_code() == (3, "no case can be compared")


def test_slower_faster_and_same() -> None:
    found = against(
        [*times(), *times(operation="add"), *times(operation="scale")],
        [*times(1.12), *times(0.9, operation="add"), *times(1.001, operation="scale")],
    )
    assert verdicts(found) == {"copy": "slower", "add": "faster", "scale": "same"}
    slower = found.rows[0]
    assert slower.ratio == pytest.approx(1.12)
    assert slower.low is not None
    assert slower.low > 1.03
    assert slower.smallest is not None
    assert 0.03 < slower.smallest < 0.06
    assert found.exit_code() == (1, "1 of 3 cases are slower")
    assert against(times(), times()).exit_code()[0] == 0


def test_a_change_inside_the_noise_is_ambiguous_not_slower() -> None:
    noisy = processes([0.001, 0.0013, 0.0009])
    found = against(noisy, processes([0.0012, 0.0014, 0.001]))
    assert verdicts(found) == {"copy": "ambiguous"}
    code, why = found.exit_code()
    assert code == 5
    assert why.endswith("0 of 1 cases are decided; runs with --processes 6 tell more apart")
    assert found.rows[0].smallest is not None
    assert found.rows[0].smallest > 0.3


def test_bimodal_noise_in_another_order_is_no_regression() -> None:
    values = [1.0] * 5 + [1.5] * 5
    shuffled = random.Random(1).sample(values, 10)
    (row,) = judged([Pair("c", values, shuffled)])
    assert row.verdict == "ambiguous"


def test_one_run_within_the_range_of_its_history_is_no_regression() -> None:
    history = [1 / rate for rate in (4455, 5259, 9129)]
    (row,) = judged([Pair("c", history, [1 / 4485])])
    assert (row.verdict, row.low) == ("ambiguous", None)


def test_a_small_true_change_within_the_threshold_passes() -> None:
    assert verdicts(against(times(), times(1.02))) == {"copy": "same"}


@pytest.mark.parametrize(
    ("base", "current", "said"),
    [(1, 1, "one process"), (1, 2, "one process"), (2, 2, "2 processes"), (2, 6, "2 processes")],
)
def test_fewer_than_three_processes_on_a_side_are_never_a_verdict(
    base: int, current: int, said: str
) -> None:
    found = against(processes([0.001] * base), processes([0.002] * current))
    assert verdicts(found) == {"copy": "ambiguous"}
    assert (found.rows[0].ratio, found.rows[0].low) == (2.0, None)
    assert f"ambiguous, {said} on a side" in shown(found)
    assert found.exit_code()[0] == 5


def test_identical_code_on_a_machine_of_two_states_is_hardly_ever_slower() -> None:
    """Three processes are all in one state once in three times, and then look very sure."""
    noise = random.Random(20260102)

    def medians() -> list[float]:
        states = [noise.choice((1.0, 1.0, 1.3)) for _ in range(3)]
        return [0.001 * state * noise.gauss(1, 0.002) for state in states]

    gates = [judged([Pair(str(i), medians(), medians()) for i in range(30)]) for _ in range(100)]
    red = sum(any(row.verdict == "slower" for row in rows) for rows in gates)
    assert red <= 3  # 31 where each case is taken by itself


def test_few_processes_that_agree_are_still_enough() -> None:
    """A steady machine decides with three processes, and a few shaky cases do not hinder it."""
    noise = random.Random(20260102)

    def medians(factor: float, sigma: float) -> list[float]:
        return [0.001 * factor * noise.lognormvariate(0, sigma) for _ in range(3)]

    sigmas = [0.002] * 25 + [0.2] * 5
    rows = judged([Pair(str(i), medians(1, s), medians(1.1, s)) for i, s in enumerate(sigmas)])
    assert sum(row.verdict == "slower" for row in rows[:25]) >= 20


def test_identical_code_on_a_noisy_machine_is_hardly_ever_slower() -> None:
    """sigma 0.10 between processes, 40 cases, 50 pairs of runs of three processes."""
    noise = random.Random(20260102)

    def medians() -> list[float]:
        return [noise.lognormvariate(0, 0.10) for _ in range(3)]

    rows = [
        row
        for _ in range(50)
        for row in judged([Pair(str(i), medians(), medians()) for i in range(40)])
    ]
    assert sum(row.verdict in ("slower", "faster") for row in rows) <= 0.005 * len(rows)


def test_a_true_ten_percent_is_never_called_same() -> None:
    noise = random.Random(20260102)
    for sigma in (0.002, 0.01, 0.05, 0.1):
        pairs = [
            Pair(
                str(i),
                [noise.lognormvariate(0, sigma) for _ in range(6)],
                [1.10 * noise.lognormvariate(0, sigma) for _ in range(6)],
            )
            for i in range(200)
        ]
        found = [row.verdict for row in judged(pairs)]
        assert "same" not in found
        assert "faster" not in found
        if sigma <= 0.01:
            assert found.count("slower") >= 190


def test_disjoint_runs_cannot_be_compared() -> None:
    found = against(times(), times(operation="add"))
    assert verdicts(found) == {"copy": "missing", "add": "new"}
    assert found.exit_code() == (3, "no case can be compared")


def test_missing_cases_are_listed_and_fail_unless_allowed() -> None:
    found = against([*times(), *times(operation="add")], times())
    assert verdicts(found) == {"copy": "same", "add": "missing"}
    assert found.exit_code() == (3, "1 cases of the baseline are missing")
    assert found.exit_code(allow_missing=True)[0] == 0
    assert "add/forward/cuda/float32/8192x16384/cold: missing, not in the current run" in shown(
        found
    )


@pytest.mark.parametrize("status", ["failed", "timeout", "skipped"])
def test_a_kernel_that_crashes_does_not_turn_the_gate_green(status: str) -> None:
    broken = record(operation="add", status=status, reason="illegal address")
    found = against([*times(), *times(operation="add")], [*times(), broken])
    assert verdicts(found)["add"] == "missing"
    assert found.exit_code()[0] == 3
    assert f"{status} in the current run: illegal address" in shown(found)


@pytest.mark.parametrize("status", ["failed", "timeout"])
def test_a_kernel_that_crashes_now_and_then_does_not_turn_the_gate_green(status: str) -> None:
    broken = record(operation="add", process=5, status=status, reason="illegal address")
    base, current = [*times(), *times(operation="add")], [*times(), *times(operation="add")[:5]]
    found = against(base, [*current, broken])
    assert verdicts(found)["add"] == "same"
    why = "1 cases failed in some processes, and in none of the baseline"
    assert found.exit_code() == (3, why)
    assert found.exit_code(allow_missing=True)[0] == 0
    assert f"(current: 1 of 6 records {status}: illegal address)" in shown(found)
    before = against([*current, broken], [*current, broken])
    assert before.exit_code()[0] == 0
    assert f"(baseline: 1 of 6 records {status}: illegal address; current: 1 of 6" in shown(before)


def test_a_run_that_crashed_beside_one_that_did_not_is_told() -> None:
    good, crashed = side(times(), name="gpu/a"), side([record(status="failed")], name="gpu/b")
    found = compare([side(times())], [good, crashed])
    assert found.exit_code()[0] == 3
    assert "(current: failed: made up)" in shown(found)


def test_cases_that_were_not_reached_in_time_are_no_crash() -> None:
    late = record(process=5, status="skipped", reason="time limit")
    found = against(times(), [*times()[:5], late])
    assert found.exit_code()[0] == 0
    assert "time limit" not in shown(found)


def test_a_wrong_result_fails_whatever_else() -> None:
    wrong = record(operation="add", status="wrong", reason="row 3")
    found = against(times(), [*times(), wrong])
    assert found.exit_code(allow_missing=True) == (1, "1 wrong results")
    assert "wrong result: add/forward" in shown(found)


def test_what_failed_before_is_new() -> None:
    broken = record(operation="add", status="failed", reason="no such thing")
    found = against([*times(), broken], [*times(), *times(operation="add")])
    assert verdicts(found) == {"copy": "same", "add": "new"}
    assert found.exit_code()[0] == 0
    both = against([*times(), broken], [*times(), broken])
    assert verdicts(both) == {"copy": "same", "add": "incomparable"}
    gone = against([*times(), broken], times())
    assert verdicts(gone)["add"] == "incomparable"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"timer": "graph"}, "timer differs: events and graph"),
        ({"bytes_read": 5 << 30}, "bytes_read differs: 536870912 and 5368709120"),
        ({"launch_overhead_seconds": 0.001}, "launch-bound"),
        ({"timer_tick_seconds": 0.001}, "timer-limited"),
    ],
)
def test_cases_that_differ_are_not_compared(changes: dict[str, Any], reason: str) -> None:
    found = against(times(), times(2.0, **changes))
    assert verdicts(found) == {"copy": "incomparable"}
    assert reason in found.rows[0].reason
    assert found.rows[0].ratio is None
    assert found.exit_code()[0] == 3


def test_strict_fails_on_any_ambiguous_case() -> None:
    noisy = processes([0.001, 0.0013, 0.0009], operation="add")
    base = [*times(), *times(operation="scale"), *noisy]
    found = against(base, base)
    assert found.exit_code()[0] == 0
    code, why = found.exit_code(strict=True)
    assert (code, why.partition(";")[0]) == (5, "inconclusive: 1 cases are ambiguous")


def test_several_runs_a_side_give_more_processes() -> None:
    one, two = side(times(), name="gpu/a"), side(times(), name="gpu/b")
    (row,) = compare([one, two], [one]).rows
    assert (row.base_processes, row.current_processes) == (12, 6)


def test_the_command_concludes_and_lists_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = run(tmp_path / "gpu", times())
    current = run(tmp_path / "gpu", times(), minute=1)
    assert main([str(base), str(current)]) == 0
    assert "no case of 1 is slower" in capsys.readouterr().out
    with (current / MEASUREMENTS).open("ab") as file:
        file.write(b'{"benchmarks": [{"stats":')
    assert main([str(base), str(current)]) == 1
    captured = capsys.readouterr()
    assert f"{current / MEASUREMENTS}:7: is not valid JSON" in captured.err
    assert "copy/forward" in captured.out
    assert main([str(base), str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_every_verdict_has_a_place_in_the_table() -> None:
    rows = judged([Pair("a", STEADY, STEADY), Pair("b", verdict="missing", reason="gone")])
    assert {row.verdict for row in rows} == {"same", "missing"}
    assert set(DECIDED) == {"same", "faster", "slower"}
    assert "missing" in as_text(compare_tables(Comparison(rows))[0])


def copies(factor: float = 1.0) -> list[Record]:
    return times(factor, implementation="memcpy", cache="cold")


def test_a_busier_machine_is_not_slower_code() -> None:
    """Every time is up by a fifth in one run, the reference copy's too."""
    found = against([*times(), *copies()], [*times(1.2), *copies(1.2)])
    assert [row.verdict for row in found.rows] == ["ambiguous"]
    assert "in units of the reference copy between" in found.rows[0].reason
    assert "ambiguous, at least 1" in shown(found)  # or the interval alone would call it slower
    assert found.exit_code()[0] == 5


def test_slower_code_is_slower_beside_the_copy_as_well() -> None:
    found = against([*times(), *copies()], [*times(1.2), *copies(1.001)])
    assert [row.verdict for row in found.rows] == ["slower"]


def test_a_quieter_machine_does_not_make_slower_code_the_same() -> None:
    found = against([*times(), *copies()], [*times(), *copies(0.9)])
    assert found.rows[0].verdict == "ambiguous"


def test_many_cases_do_not_make_sameness_unprovable() -> None:
    """Each of ten alike cases is the same; one that may have grown by 3 % is not."""
    names = [f"op{i}" for i in range(10)]
    noise = Random(5)

    def noisy(factor: float = 1.0, **changes: Any) -> list[Record]:
        return processes([0.001 * factor * noise.gauss(1, 0.01) for _ in range(6)], **changes)

    base = [r for name in names for r in noisy(operation=name)]
    current = [r for name in names[:-1] for r in noisy(operation=name)]
    found = verdicts(against(base, [*current, *noisy(1.03, operation=names[-1])]))
    assert [found[name] for name in names[:-1]] == ["same"] * 9
    assert found[names[-1]] == "ambiguous"


def test_the_reference_copy_judges_and_is_not_judged() -> None:
    copies = times(implementation="memcpy")
    found = against([*times(operation="add"), *copies], [*times(operation="add"), *copies])
    assert verdicts(found) == {"add": "same"}
