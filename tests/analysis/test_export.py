"""Files for other programs: complete or not there, strict, and what their readers read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.analysis import export as exporting
from membound.analysis.export import FORMATS, export
from membound.analysis.export_pytest import NothingMeasured, _stats
from membound.cli import app
from membound.results.record import Peak, Record
from membound.results.store import ENVIRONMENT, MEASUREMENTS, StoreError
from membound.tests.generated import device, environment, processes, record, run
from pytest_benchmark.stats import Stats
from typer.testing import CliRunner

SILU = "silu/forward/cuda/float32/8192x16384/cold"


def layers() -> list[Record]:
    silu = {"operation": "silu", "family": "activation"}
    return [
        record(process=0, seconds=[0.00070, 0.00080, 0.00060], **silu),
        record(process=1, seconds=[0.00090, 0.00091], **silu),
        record(process=2, seconds=[0.00071], **silu),
        *processes([0.002] * 2, implementation="torch", source_hash="é", **silu),
        record(implementation="numba", status="skipped", reason="no float8", **silu),
        record(implementation="triton", status="failed", reason="no compiler", **silu),
        record(implementation="cupy", process=0, **silu),
        record(implementation="cupy", process=1, status="wrong", reason="row 3", **silu),
        record(implementation="memcpy", position=7),
    ]


def strict(file: Path) -> Any:
    def refuse(literal: str) -> float:
        raise ValueError(literal)

    return json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)


def filed(tmp_path: Path, records: Sequence[Record], **changes: Any) -> Any:
    path = run(tmp_path / "gpu", records, environment(**changes))
    export([path], tmp_path / "o.json")
    return strict(tmp_path / "o.json")


def test_tables_as_csv_and_parquet(tmp_path: Path) -> None:
    path = run(tmp_path / "gpu", layers())
    for name in ("a.csv", "a.parquet"):
        done = export([path], tmp_path / name)
        assert (done.runs[0].problems, done.note) == ([], None)
    csv, parquet = pd.read_csv(tmp_path / "a.csv"), pd.read_parquet(tmp_path / "a.parquet")
    assert list(csv.columns) == list(parquet.columns)
    assert csv["gb_per_s"].tolist()[:5] == pytest.approx(parquet["gb_per_s"].tolist()[:5])
    assert parquet["traffic_bytes"].dtype == "int64"


def test_the_format_is_named_or_follows_from_the_suffix(tmp_path: Path) -> None:
    path = run(tmp_path / "gpu", layers())
    with pytest.raises(StoreError, match=r"unknown format; name a file ending in \.csv or"):
        export([path], tmp_path / "a.xlsx")
    with pytest.raises(StoreError, match="unknown format 'excel'; valid: csv, parquet, pytest-b"):
        export([path], tmp_path / "a.csv", "excel")
    for name in FORMATS:
        export([path], tmp_path / f"{name}.txt", name)
    assert "benchmarks" in strict(tmp_path / "pytest-benchmark.txt")
    assert len(pd.read_csv(tmp_path / "csv.txt")) == len(layers())
    assert len(pd.read_parquet(tmp_path / "parquet.txt")) == len(layers())


def test_every_key_that_readers_read(tmp_path: Path) -> None:
    content = filed(tmp_path, layers())
    assert list(content) == ["machine_info", "commit_info", "benchmarks", "datetime", "version"]
    assert [entry["param"].split("/")[2] for entry in content["benchmarks"]] == ["cuda", "torch"]
    entry = content["benchmarks"][0]
    assert entry["name"] == f"test_bandwidth[{SILU}]"
    assert entry["fullname"] == f"bench/test_bench.py::test_bandwidth[{SILU}]"
    assert (entry["group"], entry["params"]) == ("silu/forward", {"case": SILU})
    assert entry["options"]["timer"] == "events"
    stats = entry["stats"]
    assert stats["data"] == [0.00070, 0.00080, 0.00060, 0.00090, 0.00091, 0.00071]
    assert set(stats) == {*Stats.fields, "data", "iterations"}
    # github-action-benchmark and Bencher's python_pytest read these as numbers.
    for name in ("min", "max", "mean", "stddev", "median", "iqr", "q1", "q3", "ops", "total"):
        assert isinstance(stats[name], float), name
    assert (stats["rounds"], stats["iterations"]) == (6, 1)
    # The median of process medians is 0.71 ms; one over the mean of all samples is another number.
    assert stats["ops"] == pytest.approx(1 / 0.00071)
    assert entry["extra_info"]["seconds"] == 0.00071
    assert entry["extra_info"]["gb_per_s"] == pytest.approx(2**30 / 0.00071 / 1e9)
    assert entry["extra_info"]["source_hash"] == "generated"
    assert content["benchmarks"][1]["extra_info"]["source_hash"] == "é"


def test_the_machine_and_the_commit_are_those_of_the_run(tmp_path: Path) -> None:
    content = filed(tmp_path, layers(), host={"kernel": "6.1"}, versions={"python": "3.12.1"})
    info = content["machine_info"]
    assert info["device"]["name"] == "NVIDIA Generated"
    assert info["peak"] == {"gbps": 2000.0, "source": "sheet", "provenance": "generated"}
    assert (info["release"], info["python_version"]) == ("6.1", "3.12.1")
    assert content["commit_info"]["id"] == "0123abc" + "0" * 33
    assert content["commit_info"]["dirty"] is False


def test_what_is_unknown_is_not_made_up(tmp_path: Path) -> None:
    content = filed(
        tmp_path, layers(), peak=None, commit=None, dirty=None, commit_reason="no git here"
    )
    commit = content["commit_info"]
    assert (commit["id"], commit["dirty"], commit["error"]) == ("unknown", None, "no git here")
    assert content["machine_info"]["peak"] is None
    assert "percent_of_peak" not in content["benchmarks"][0]["extra_info"]


def test_beyond_the_peak_is_no_achievement(tmp_path: Path) -> None:
    low = Peak(gbps=1000.0, source="user", provenance="too low")
    for entry in filed(tmp_path, layers(), peak=low)["benchmarks"]:
        assert entry["extra_info"].get("percent_of_peak", 0) <= 100


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 30, 31])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_statistics_are_those_of_pytest_benchmark(count: int, data: st.DataObject) -> None:
    samples = data.draw(st.lists(st.floats(1e-9, 10), min_size=count, max_size=count))
    theirs = Stats()  # type: ignore[no-untyped-call]
    for sample in samples:
        theirs.update(sample)  # type: ignore[no-untyped-call]
    ours, whole = _stats(samples), theirs.as_dict()  # type: ignore[no-untyped-call]
    # Counts of outliers turn on the last bit where samples are all alike; they have a test below.
    counts = {"outliers", "stddev_outliers", "iqr_outliers", "ld15iqr", "hd15iqr"}
    for name in set(whole) - {"ops", *counts}:
        assert ours[name] == pytest.approx(whole[name], rel=1e-12, abs=1e-18), name
    assert len(ours["data"]) == count


def test_outliers_and_fences() -> None:
    samples = [1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 90.0]
    theirs = Stats()  # type: ignore[no-untyped-call]
    for sample in samples:
        theirs.update(sample)  # type: ignore[no-untyped-call]
    ours = _stats(samples)
    assert (ours["ld15iqr"], ours["hd15iqr"], ours["outliers"]) == (1.0, 3.0, "1;1")
    assert ours["outliers"] == theirs.outliers


def test_pytest_benchmark_compares_it(tmp_path: Path) -> None:
    filed(tmp_path, layers())
    again = run(tmp_path / "again", layers(), environment(device=device(name="Other")))
    export([again], tmp_path / "b.json")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest_benchmark", "--storage", str(tmp_path / "store"),
         "compare", "--columns=min,median,ops,rounds", "o.json", "b.json"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert f"test_bandwidth[{SILU}] (o)" in done.stdout
    assert f"test_bandwidth[{SILU}] (b)" in done.stdout
    assert "benchmark 'silu/forward': 4 tests" in done.stdout
    assert "Failed to load" not in done.stdout + done.stderr


def test_what_was_not_measured_is_left_out_and_counted(tmp_path: Path) -> None:
    path = run(tmp_path / "gpu", layers())
    done = CliRunner().invoke(app, ["export", str(path), "-o", str(tmp_path / "o.json")])
    assert done.exit_code == 0, done.output
    said = "left out, not measured: 3 cases, 1 skipped, 1 failed, 1 wrong\n"
    assert (done.stdout, done.stderr) == ("", said)
    assert "numba" not in (tmp_path / "o.json").read_text()


def test_nothing_measured_writes_no_file(tmp_path: Path) -> None:
    bad = [record(operation=f"op{i}", status="failed", reason="x") for i in range(2)]
    path = run(tmp_path / "gpu", [*bad, record(implementation="memcpy")])
    file = tmp_path / "o.json"
    done = CliRunner().invoke(app, ["export", str(path), "-o", str(file)])
    assert (done.exit_code, done.stderr.count("\n")) == (4, 1)
    assert f"{path}: nothing was measured, 2 failed" in done.stderr
    file.write_text("before")
    with pytest.raises(NothingMeasured, match="it has no case"):
        export([run(tmp_path / "none", [])], file)
    assert exporting.main([str(path), "--output", str(file)]) == 4
    assert file.read_text() == "before"


def test_one_file_holds_one_run(tmp_path: Path) -> None:
    for minute in range(2):
        run(tmp_path / "gpu", layers(), minute=minute)
    with pytest.raises(StoreError, match="holds one run, not 2: name one"):
        export([tmp_path / "gpu"], tmp_path / "o.json")
    export([tmp_path / "gpu"], tmp_path / "o.csv")


def test_a_damaged_line_is_said_and_the_rest_is_written(tmp_path: Path) -> None:
    path = run(tmp_path / "gpu", layers())
    with (path / MEASUREMENTS).open("ab") as file:
        file.write(b"{\n")
    (path / ENVIRONMENT).write_text("{")
    output = tmp_path / "o.json"
    done = CliRunner().invoke(app, ["export", str(path), "-o", str(output)])
    assert done.exit_code == 1
    assert f"{path / MEASUREMENTS}:{len(layers()) + 1}: is not valid JSON" in done.stderr
    content = strict(output)
    assert content["machine_info"] == {}
    assert content["commit_info"]["id"] == "unknown"
    assert content["benchmarks"][0]["extra_info"]["device"] == "unknown"


@pytest.mark.parametrize("name", ["o.csv", "o.parquet", "o.json"])
def test_a_file_is_there_as_a_whole_or_not_at_all(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run(tmp_path / "gpu", layers())
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / name).write_text("before")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(StoreError, match=rf"{name} cannot be written: No space left"):
            export([path], folder / name)
    assert (folder / name).read_text() == "before"
    assert [file.name for file in folder.iterdir()] == [name]
    (folder / "link.x").symlink_to(folder / name)
    export([path], folder / "link.x", next(f for f, s in FORMATS.items() if name.endswith(s)))
    assert (folder / "link.x").is_symlink()
    assert (folder / name).stat().st_size > len("before")
    with pytest.raises(StoreError, match="is not a folder"):
        export([path], folder / "nowhere" / name)
    (tmp_path / name).mkdir()
    with pytest.raises(StoreError, match=rf"{name} cannot be written"):
        export([path], tmp_path / name)


def test_what_is_no_file_is_written_to_and_stays(tmp_path: Path) -> None:
    path = str(run(tmp_path / "gpu", layers()))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "membound.analysis.export", path, "--output", "/dev/stdout",
         "--format", "pytest-benchmark"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["benchmarks"]) == 2
    assert "left out" in done.stderr


def test_samples_are_as_measured(tmp_path: Path) -> None:
    entry = filed(tmp_path, layers())["benchmarks"][0]
    ours = [r for r in layers() if r.case == SILU]
    assert entry["extra_info"]["seconds"] == median(median(r.seconds) for r in ours)
    assert entry["extra_info"]["processes"] == 3
