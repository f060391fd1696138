"""Which run a gate takes as baseline, and runs that are there twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from membound.analysis.gate import NoBaseline, baseline
from membound.analysis.loading import read
from membound.analysis.sides import told_apart
from membound.cli import app
from membound.results.record import Environment
from membound.tests.generated import device, environment, processes, run
from typer.testing import CliRunner

STEADY = [0.001, 0.00101, 0.00099]


def clean(minute: int, **changes: Any) -> Environment:
    at = f"2026-01-02T03:{minute:02}:00Z"
    return environment(started_at=at, finished_at="2026-01-02T04:00:00Z", **changes)


def made(folder: Path, minute: int, times: list[float] | None = None, **changes: Any) -> Path:
    return run(folder, processes(times or STEADY), clean(minute, **changes), minute)


def chosen(current: Path, store: Path) -> Path:
    return baseline(read([current]), store).path


def test_the_newest_run_with_the_driver_of_the_current_one(tmp_path: Path) -> None:
    store, five_eighty = tmp_path / "store", device(driver="580.126.09")
    wanted = made(store / "gpu", 1, device=five_eighty)
    made(store / "gpu", 2, device=device(driver="570.86.15"))
    made(store / "gpu", 3, host={"wsl": "yes"}, device=five_eighty)
    host = {"wsl": "no"}
    current = made(tmp_path / "now", 4, device=device(driver="580.95.05"), host=host)
    assert chosen(current, store) == wanted


def test_another_driver_is_better_than_no_baseline(tmp_path: Path) -> None:
    other = made(tmp_path / "store" / "gpu", 1, device=device(driver="570.86.15"))
    assert chosen(made(tmp_path / "now", 2), tmp_path / "store") == other


def test_a_baseline_is_older_where_there_is_one(tmp_path: Path) -> None:
    older = made(tmp_path / "store" / "gpu", 1)
    made(tmp_path / "store" / "gpu", 9)
    assert chosen(made(tmp_path / "now", 5), tmp_path / "store") == older


def test_a_copy_of_the_current_run_is_no_baseline(tmp_path: Path) -> None:
    current = made(tmp_path / "now", 5)
    shutil.copytree(current, tmp_path / "store" / "gpu" / current.name)
    with pytest.raises(NoBaseline):
        chosen(current, tmp_path / "store")


def test_what_tells_two_devices_of_one_name_apart_is_said(tmp_path: Path) -> None:
    capped = device(name="NVIDIA GeForce RTX 4090", power_limit_watts=248.0)
    made(tmp_path / "store" / "gpu", 1, device=capped)
    made(tmp_path / "store" / "other", 2, device=device(name="NVIDIA L4"))
    current = made(tmp_path / "now", 3, device=device(name="NVIDIA GeForce RTX 4090"))
    with pytest.raises(NoBaseline) as refused:
        chosen(current, tmp_path / "store")
    have = "NVIDIA GeForce RTX 4090 (power_limit_watts: 248.0 and 700.0), NVIDIA L4"
    assert f"; there are runs of {have};" in str(refused.value)


def test_a_run_copied_counts_once(tmp_path: Path) -> None:
    """Three processes counted four times would be sure of what they cannot know."""
    base = made(tmp_path / "base" / "0", 1, [0.001, 0.00105, 0.00095])
    current = made(tmp_path / "current" / "0", 2, [0.00107, 0.00109, 0.00111])
    for number in range(1, 4):
        shutil.copytree(base, tmp_path / "base" / str(number) / base.name)
        shutil.copytree(current, tmp_path / "current" / str(number) / current.name)
    ended = CliRunner().invoke(app, ["compare", str(tmp_path / "base"), str(tmp_path / "current")])
    assert ended.exit_code == 5
    assert ended.output.count("counted once") == 6


def test_the_current_run_is_no_part_of_its_baseline(tmp_path: Path) -> None:
    first, second = made(tmp_path / "gpu", 1), made(tmp_path / "gpu", 2)
    sides = told_apart(read([tmp_path / "gpu"]), read([second]))
    assert [r.path for r in sides.base] == [first]
    assert sides.notes == [f"{second} is on both sides: left out of the baseline"]


def test_a_run_compared_with_itself_is_told(tmp_path: Path) -> None:
    only = made(tmp_path / "gpu", 1)
    ended = CliRunner().invoke(app, ["compare", str(only), str(only)])
    assert ended.exit_code == 0
    assert f"{only} is compared with itself" in ended.output
