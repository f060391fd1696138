"""The tidy table: literal values, stable columns, nothing dropped in silence."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import membound.analysis
import pytest
from membound.analysis.loading import COLUMNS, dram_sized, frame, load, read, residue
from membound.results.store import MEASUREMENTS, StoreError
from membound.tests.generated import MIB, environment, processes, record, run

ROOT = Path(__file__).parents[2]


def test_one_row_per_case_and_process(tmp_path: Path) -> None:
    run(tmp_path, [*processes([0.001, 0.002]), record(operation="x", status="failed", reason="no")])
    table = load(tmp_path)
    assert list(table.columns) == list(COLUMNS)
    assert list(table["process"]) == [0, 1, 0]
    assert table["gb_per_s"].tolist()[:2] == pytest.approx([1073.741824, 536.870912])
    assert table["gb_per_s"].isna().tolist() == [False, False, True]
    assert table.loc[0, "shape"] == "8192x16384"
    assert table.loc[2, "reason"] == "no"


def test_gb_are_powers_of_ten(tmp_path: Path) -> None:
    # 2^30 bytes in one second: 1.0737 GB/s, which is 1 GiB/s.
    table = load(run(tmp_path, [record(bytes_read=2**30, bytes_written=0, seconds=[1.0])]))
    assert table.loc[0, "gb_per_s"] == pytest.approx(1.073741824)


def test_the_median_is_the_time_that_bandwidth_comes_from(tmp_path: Path) -> None:
    samples = [100e-6] * 9 + [400e-6]
    table = load(run(tmp_path, [record(seconds=samples)]))
    assert table.loc[0, "median_seconds"] == 100e-6
    assert table.loc[0, "gb_per_s"] == pytest.approx(2**30 / 100e-6 / 1e9)
    assert (table.loc[0, "low_seconds"], table.loc[0, "high_seconds"]) == (100e-6, 100e-6)


@pytest.mark.parametrize("status", ["wrong", "failed", "skipped", "timeout"])
def test_what_is_not_ok_never_has_a_bandwidth(tmp_path: Path, status: str) -> None:
    table = load(run(tmp_path, [record(status=status, seconds=[0.001])]))
    assert table["gb_per_s"].isna().all()
    assert table.loc[0, "median_seconds"] == 0.001  # the raw figure stays


def test_an_empty_shape_has_no_bandwidth(tmp_path: Path) -> None:
    empty = record(bytes_read=0, bytes_written=0, shape={"rows": 0, "columns": 4})
    table = load(run(tmp_path, [empty]))
    assert table["gb_per_s"].isna().all()
    assert not table.loc[0, "dram_sized"]


def test_order_of_samples_changes_nothing(tmp_path: Path) -> None:
    samples = [0.004, 0.001, 0.003, 0.002, 0.006, 0.005, 0.007]
    one = load(run(tmp_path / "a", [record(seconds=samples)]))
    two = load(run(tmp_path / "b", [record(seconds=sorted(samples))]))
    assert one.drop(columns="run").equals(two.drop(columns="run"))


def test_no_runs_give_the_same_columns_and_types(tmp_path: Path) -> None:
    assert dict(frame([]).dtypes) == dict(load(run(tmp_path, [record()])).dtypes)


def test_problems_warn_and_missing_runs_raise(tmp_path: Path) -> None:
    path = run(tmp_path, [record()])
    with (path / MEASUREMENTS).open("ab") as file:
        file.write(b"{\n")
    with pytest.warns(UserWarning, match=r"measurements.jsonl:2: is not valid JSON"):
        assert len(load(path)) == 1
    with pytest.raises(StoreError, match="does not exist"):
        load(tmp_path / "nothing")


def test_unknown_device_and_peak_stay_unknown(tmp_path: Path) -> None:
    path = run(tmp_path, [record()], environment(peak=None, peak_reason="not in the sheet"))
    assert load(path)["peak_gb_per_s"].isna().all()
    (path / "environment.json").unlink()
    table = frame(read([path]))
    for column in ("device", "llc_bytes", "dram_sized", "write_residue", "peak_gb_per_s"):
        assert table[column].isna().all(), column
    assert table.loc[0, "gb_per_s"] == pytest.approx(1073.741824)


def test_runs_of_the_same_name_stay_apart(tmp_path: Path) -> None:
    run(tmp_path / "one" / "gpu", [record()])
    run(tmp_path / "two" / "gpu", [record()])
    assert load(tmp_path / "one", tmp_path / "two")["run"].nunique() == 2


@pytest.mark.parametrize(
    ("changes", "left", "sized"),
    [
        # llc 25 MiB; a copy of 20 caches leaves one cache of output behind: 5 %.
        ({"bytes_read": 250 * MIB, "bytes_written": 250 * MIB}, 0.05, True),
        ({"bytes_read": 249 * MIB, "bytes_written": 249 * MIB}, 25 / 498, False),
        # Reads leave nothing, yet have to be four caches.
        ({"bytes_read": 100 * MIB, "bytes_written": 0}, 0.0, True),
        ({"bytes_read": 99 * MIB, "bytes_written": 0}, 0.0, False),
        # Steady over four caches pays for itself, over less it does not.
        ({"bytes_read": 5, "bytes_written": 5, "footprint_bytes": 100 * MIB}, 0.0, True),
        ({"bytes_read": MIB, "bytes_written": MIB, "footprint_bytes": 99 * MIB}, 0.5, False),
        ({"bytes_read": MIB, "bytes_written": MIB, "footprint_bytes": None}, 0.5, False),
        ({"bytes_read": 0, "bytes_written": 0}, None, False),
    ],
)
def test_write_residue_and_dram_size(
    changes: dict[str, int | None], left: float | None, sized: bool
) -> None:
    made = record(cache="steady" if "footprint_bytes" in changes else "cold", **changes)
    assert residue(made, 25 * MIB) == left
    assert dram_sized(made, 25 * MIB) is sized


def test_the_readme_explains_every_column_and_no_other() -> None:
    text = (ROOT / "results" / "README.md").read_text().partition("| column |")[2]
    named = [name for row in re.findall(r"^\| (`.*?) \|", text, re.M) for name in row.split(", ")]
    assert [name.strip("`") for name in named] == list(COLUMNS)


def test_importing_is_light() -> None:
    code = (
        "import sys, membound.analysis, membound.results.reading;"
        "print([m for m in ('pandas', 'numpy', 'scipy', 'torch', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_load_is_reached_from_the_package() -> None:
    assert membound.analysis.load is load
    with pytest.raises(AttributeError, match="unload"):
        membound.analysis.unload  # noqa: B018
