"""Bandwidth, ceilings and verdicts: literal values, and figures that must not be believed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.analysis.bandwidth import Achieved, achieved, bandwidth, run_ceilings
from membound.analysis.cases import cases
from membound.analysis.ceiling import Ceiling, ceiling_at
from membound.analysis.loading import frame
from membound.results.reading import Run
from membound.results.record import Environment, Peak, Record
from membound.tests.generated import MIB, environment, processes, record


def rows(records: Sequence[Record], env: Environment | None = None) -> list[Achieved]:
    return achieved(cases(frame([Run(Path("gpu/run"), env or environment(), list(records))])))


def only(records: Sequence[Record], env: Environment | None = None) -> Achieved:
    (row,) = rows(records, env)
    return row


def stream(name: str, reads: int, writes: int, gb_per_s: float, **changes: Any) -> list[Record]:
    """Three processes of a copy-family operation over arrays of 512 MiB at this rate."""
    moved = (reads + writes) * 512 * MIB
    fields = {"bytes_read": reads * 512 * MIB, "bytes_written": writes * 512 * MIB} | changes
    return processes([moved / gb_per_s / 1e9] * 3, operation=name, **fields)


def test_median_of_process_medians_with_interval_and_percentages() -> None:
    row = only(processes([0.0010, 0.0011, 0.00121]))
    assert row.gb_per_s == pytest.approx(2**30 / 0.0011 / 1e9)
    assert row.percent_of_peak == pytest.approx(100 * 2**30 / 0.0011 / 1e9 / 2000)
    assert row.low_gb_per_s == pytest.approx(2**30 / (0.0011 * 1.26714) / 1e9, rel=1e-4)
    assert row.high_gb_per_s == pytest.approx(2**30 / (0.0011 / 1.26714) / 1e9, rel=1e-4)
    assert row.processes == 3


def test_positions_of_one_process_are_one_value() -> None:
    records = [record(position=p, seconds=[s]) for p, s in enumerate((0.001, 0.003, 0.002))]
    row = only(records)
    assert (row.processes, row.median_seconds, row.low_seconds) == (1, 0.002, None)


def test_two_processes_show_no_interval() -> None:
    row = only(processes([0.001, 0.001]))
    assert (row.low_gb_per_s, row.high_gb_per_s) == (None, None)


def test_unknown_peak_gives_no_percentage() -> None:
    row = only(processes([0.001] * 3), environment(peak=None))
    assert row.percent_of_peak is None
    assert row.gb_per_s == pytest.approx(1073.741824)


def test_ceilings_are_the_best_copy_at_each_read_share() -> None:
    records = [
        *stream("mix_1r0w", 1, 0, 1800.0),
        *stream("read", 1, 0, 1700.0),
        *stream("copy", 1, 1, 1500.0),
        *stream("copy", 1, 1, 1600.0, implementation="memcpy"),
        *stream("fill", 0, 1, 1400.0, dtype="bfloat16"),
        *stream("silu", 1, 1, 1900.0, family="activation"),  # no copy
        *stream("copy", 1, 1, 2500.0, implementation="odd"),  # beyond the peak
    ]
    points = run_ceilings(cases(frame([Run(Path("a/b"), environment(), records)])))
    found = [(point.share, round(point.gb_per_s)) for point in points["a/b", "cold"]]
    assert found == [(0.0, 1400), (0.5, 1600), (1.0, 1800)]


def test_between_shares_the_time_per_byte_is_linear() -> None:
    points = [Ceiling(0.5, 1600.0, "copy"), Ceiling(1.0, 1800.0, "read")]
    # 3/4 reads: half the bytes at 1/1600, half at 1/1800 seconds per GB.
    assert ceiling_at(points, 0.75) == pytest.approx(2 / (1 / 1600 + 1 / 1800))
    assert ceiling_at(points, 0.5) == 1600.0
    assert ceiling_at(points, 0.4999) == 1600.0
    assert ceiling_at(points, 0.49) == 1600.0
    assert ceiling_at(points, 0.40) is None
    assert ceiling_at([], 0.5) is None


def test_ceilings_are_of_the_same_cache_state() -> None:
    steady = stream("copy", 1, 1, 1600.0, cache="steady", footprint_bytes=1024 * MIB)
    layer = stream("silu", 1, 1, 1200.0, family="activation")
    found = {row.operation: row for row in rows([*steady, *layer])}
    assert found["silu"].ceiling_gb_per_s is None
    assert found["copy"].percent_of_ceiling == pytest.approx(100)


@pytest.mark.parametrize(
    ("changes", "verdict", "why"),
    [
        ({}, "memory-bound", "94% of the copies"),
        ({"seconds": [0.002]}, "below-ceiling", "34% of the copies"),
        ({"launch_overhead_seconds": 0.0003}, "launch-bound", "launch overhead of 300 µs"),
        ({"launch_overhead_seconds": 0.0002}, "memory-bound", ""),
        ({"timer_tick_seconds": 5e-6}, "timer-limited", "under 200 timer steps of 5 µs"),
        ({"bytes_read": MIB, "bytes_written": MIB}, "cache-resident", "50% of the bytes"),
        ({"bytes_read": 32 * MIB, "bytes_written": 0}, "cache-resident", "under 4 times"),
        ({"seconds": [0.0005]}, "above-peak", "2,147 GB/s beyond the peak of 2,000"),
        ({"throttled": True}, "throttled", "SM clock"),
        ({"bytes_read": 0, "bytes_written": 0}, "empty", "no byte"),
        ({"status": "wrong", "reason": "row 3"}, "wrong", "row 3"),
        ({"status": "failed", "reason": "ptxas"}, "failed", "ptxas"),
        ({"status": "skipped", "reason": "needs 9 GB"}, "skipped", "needs 9 GB"),
        ({"status": "timeout", "reason": "60 s"}, "timeout", "60 s"),
    ],
)
def test_verdicts(changes: dict[str, Any], verdict: str, why: str) -> None:
    layer = {"operation": "silu", "family": "activation", "seconds": [0.00072]} | changes
    found = rows([*stream("copy", 1, 1, 1590.0), *[record(process=p, **layer) for p in range(3)]])
    row = next(row for row in found if row.operation == "silu")
    assert row.verdict == verdict
    assert why in row.why
    assert row.ranked == (verdict in ("memory-bound", "below-ceiling"))
    if verdict not in ("memory-bound", "below-ceiling", "throttled"):
        assert (row.percent_of_peak, row.percent_of_ceiling) == (None, None)
    if layer.get("status", "ok") != "ok":
        assert (row.gb_per_s, row.median_seconds) == (None, None)


@pytest.mark.parametrize(
    ("times", "peak", "verdict"),
    [
        (1.4, None, "memory-bound"),
        (40.0, None, "above-ceiling"),
        (2.0, 1000.0, "memory-bound"),  # a peak allows it: the copies were slow
        (40.0, 1000.0, "above-peak"),
    ],
)
def test_far_beyond_the_copies_needs_a_peak_that_allows_it(
    times: float, peak: float | None, verdict: str
) -> None:
    layer = processes([0.005 / times] * 3, operation="silu", family="activation")
    known = Peak(gbps=peak, source="sheet", provenance="made up") if peak else None
    found = rows([*processes([0.005] * 3), *layer], environment(peak=known))
    row = next(row for row in found if row.operation == "silu")
    assert row.verdict == verdict
    assert row.ranked == (verdict == "memory-bound")
    assert row.ranked or row.percent_of_ceiling is None


def test_processes_that_disagree_are_unstable() -> None:
    assert only(processes([0.0010, 0.0013, 0.0009])).verdict == "unstable"


def test_one_wrong_process_makes_the_case_wrong() -> None:
    records = [*processes([0.001, 0.001]), record(process=2, status="wrong", reason="tail")]
    assert (only(records).verdict, only(records).gb_per_s) == ("wrong", None)


def test_a_process_that_failed_is_said_beside_the_figure() -> None:
    records = [*processes([0.001, 0.001]), record(process=2, status="failed", reason="killed")]
    row = only(records)
    assert row.gb_per_s == pytest.approx(1073.741824)
    assert "1 of 3 records failed: killed" in row.why


def test_an_unknown_cache_is_not_told_from_memory() -> None:
    table = frame([Run(Path("a/b"), None, processes([0.001] * 3))])
    (row,) = achieved(cases(table))
    assert (row.verdict, row.ranked) == ("unsized", False)


def test_as_a_frame(tmp_path: Path) -> None:
    table = bandwidth(frame([Run(tmp_path, environment(), processes([0.001] * 3))]))
    assert table["gb_per_s"].tolist() == pytest.approx([1073.741824])
    assert len(bandwidth(frame([]))) == 0


@settings(max_examples=100, deadline=None)
@given(
    seconds=st.lists(st.floats(1e-8, 10), min_size=1, max_size=4),
    read=st.integers(0, 2**40),
    written=st.integers(0, 2**40),
    peak=st.floats(0.1, 1e5),
)
def test_no_figure_beyond_the_peak_is_ranked(
    seconds: list[float], read: int, written: int, peak: float
) -> None:
    known = environment(peak=Peak(gbps=peak, source="user", provenance="made up"))
    row = only(processes(seconds, bytes_read=read, bytes_written=written), known)
    if row.ranked:
        assert row.percent_of_peak is not None
        assert row.percent_of_peak <= 100 + 1e-9
    for value in (row.gb_per_s, row.percent_of_peak, row.percent_of_ceiling):
        assert value is None or (math.isfinite(value) and value > 0)
