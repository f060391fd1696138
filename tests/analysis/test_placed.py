"""Cases in other memory than the device's: a table of their own, and held to nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from membound.analysis.bandwidth import achieved, bandwidth, run_ceilings
from membound.analysis.cases import cases
from membound.analysis.compare import compare
from membound.analysis.drift import drifts
from membound.analysis.fusion import gains
from membound.analysis.loading import frame, load
from membound.analysis.report import report
from membound.analysis.report.told import layers
from membound.analysis.tables import bandwidth_tables
from membound.results.checked import decode
from membound.results.reading import read_run
from membound.results.record import SCHEMA, Record
from membound.tests.generated import environment, record, run

OURS = {"operation": "mix_1r1w", "family": "copy"}


def mixed(tmp_path: Path, seconds: float = 0.0001) -> Path:
    """A stream in device memory and, ten times as fast, in pinned memory, where none can be."""
    records = [record(process=p, **OURS) for p in range(3)]
    records += [
        record(process=p, placement="pinned", seconds=[seconds] * 3, position=1, **OURS)
        for p in range(3)
    ]
    copies = [
        record(process=p, implementation="memcpy", position=n) for p in range(3) for n in (2, 3)
    ]
    return run(tmp_path, [*records, *copies], environment(finished_at="2026-01-02T03:09:05Z"))


def test_it_is_held_to_nothing_and_sets_nothing(tmp_path: Path) -> None:
    table = load(mixed(tmp_path))
    assert set(table["placement"]) == {"device", "pinned"}
    assert set(table["shape"]) == {"8192x16384"}
    rows = {row.placement: row for row in achieved(cases(table)) if row.operation == "mix_1r1w"}
    placed = rows["pinned"]
    assert placed.gb_per_s == pytest.approx(10737.4, rel=1e-4)  # above the peak, and not said so
    assert (placed.verdict, placed.ranked) == ("placed", False)
    assert "pinned memory" in placed.why
    assert placed.percent_of_peak is None and placed.percent_of_ceiling is None
    assert rows["device"].verdict == "memory-bound"
    (points,) = run_ceilings(cases(table)).values()
    assert max(point.gb_per_s for point in points) < 1100
    assert list(bandwidth(table)["placement"])[:2] == ["device", "pinned"]


def test_it_has_a_table_of_its_own_and_no_bar(tmp_path: Path) -> None:
    folder = mixed(tmp_path)
    rows = achieved(cases(load(folder)))
    device, pinned = bandwidth_tables(rows)
    assert device.title == "Achieved bandwidth, cold"
    assert pinned.title == "Achieved bandwidth, cold, in pinned memory"
    assert [row[-1] for row in pinned.rows] == ["placed"]
    assert {row.placement for some in layers(rows).values() for row in some} == {"device"}
    text = report([folder], form="markdown").text
    assert "in pinned memory" in text and "held to none of its ceilings" in text


def test_it_follows_no_drift_and_is_no_namesakes_partner(tmp_path: Path) -> None:
    table = load(mixed(tmp_path))
    assert drifts(table)
    names = ["copy/forward/cuda/float32/8192x16384/cold", "pinned/cold"]
    assert not table[table["case"].str.endswith(names[1])]["dram_sized"].any()
    fused = record(unfused_bytes=4 << 30, placement="pinned")
    chain = record(unfused_bytes=4 << 30, variant="unfused", position=1)
    found = cases(frame([read_run(run(tmp_path / "f", [fused, chain]))]))
    assert all(gain.measured is None for gain in gains(found))


def test_it_is_compared_with_its_namesake_alone(tmp_path: Path) -> None:
    slower, quicker = mixed(tmp_path / "a", 0.0002), mixed(tmp_path / "b")
    found = compare([read_run(quicker)], [read_run(slower)])
    verdicts = {row.case: row.verdict for row in found.rows}
    assert verdicts["mix_1r1w/forward/cuda/float32/8192x16384/cold"] == "same"
    assert verdicts["mix_1r1w/forward/cuda/float32/8192x16384/pinned/cold"] == "slower"


def test_files_of_schema_1_are_of_device_memory(tmp_path: Path) -> None:
    tree = msgspec.to_builtins(record(**OURS)) | {"schema": 1}
    del tree["placement"]
    old = decode(msgspec.json.encode(tree), Record)
    assert old.value is not None and old.value.placement == "device"
    assert SCHEMA == 2
    newer = decode(msgspec.json.encode(tree | {"schema": SCHEMA + 1}), Record)
    assert newer.value is None
    assert "written by a newer membound" in str(newer.flaws[0])
    committed = Path(__file__).parents[2] / "results"
    assert set(load(committed)["placement"]) == {"device"}
