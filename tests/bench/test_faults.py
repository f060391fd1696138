"""What a machine does to a run: kills, full disks, folders that go, clocks and devices that change.

One run is measured; after that its workers are stand-ins that hand over the same records. A
supervisor that is killed is a fork of this process.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from membound.bench import run as running
from membound.bench.device.probe import Machine
from membound.bench.protocol import Plan
from membound.bench.run import measure, resume
from membound.bench.supervisor import Supervisor, WorkerCannotStart
from membound.cli import app
from membound.results import store
from membound.results.reading import Run, read_run
from membound.results.store import MEASUREMENTS, StoreError
from membound.tests.bench.disturbed import (
    REPLAYING,
    Watcher,
    complete,
    die,
    folder_in,
    killed,
    mounted,
    request_for,
    small,
    workers,
)
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run by real workers; `Run.records` are what stand-ins hand over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "select", small)
        return read_run(measure(request_for(tmp_path_factory.mktemp("real")), Watcher()).folder)


@pytest.fixture(autouse=True)
def _stand_ins(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Workers replay the measured run; afterwards none of them may be left."""
    real: Run = request.getfixturevalue("measured")
    variant = getattr(request, "param", "none")
    command = [
        sys.executable,
        "-P",
        "-c",
        REPLAYING,
        str(real.path),
        str(tmp_path / "lost"),
        variant,
    ]
    monkeypatch.setattr(running, "select", small)
    monkeypatch.setattr(running, "Supervisor", partial(Supervisor, command=command))
    yield
    assert workers(tmp_path) == []


def test_a_supervisor_killed_at_any_record_boundary_loses_nothing(
    measured: Run, tmp_path: Path
) -> None:
    assert len(measured.records) >= 3
    for boundary in range(1, len(measured.records) + 1):
        out = tmp_path / str(boundary)

        def at_boundary(folder: Path, count: int, boundary: int = boundary) -> None:
            if count == boundary:
                die()

        assert killed(lambda: measure(request_for(out), Watcher(at_boundary))) == signal.SIGKILL  # noqa: B023
        kept = read_run(folder_in(out))
        assert kept.records == measured.records[:boundary]
        assert not kept.problems
        assert kept.environment is not None and kept.environment.finished_at is None
        resume(folder_in(out), request_for(out), Watcher())
        assert complete(read_run(folder_in(out)), measured)


def test_a_supervisor_killed_in_the_middle_of_a_line_loses_that_line(
    measured: Run, tmp_path: Path
) -> None:
    whole = os.write
    for line in range(len(measured.records)):
        out = tmp_path / str(line)

        def half(descriptor: int, data: bytes, line: int = line) -> int:
            if measured.records[line].case.encode() not in data or b'"schema"' not in data:
                return whole(descriptor, data)
            whole(descriptor, data[: len(data) // 2])
            return die()

        def act() -> None:
            store.os.write = half  # type: ignore[attr-defined]
            measure(request_for(out), Watcher())  # noqa: B023

        assert killed(act) == signal.SIGKILL
        kept = read_run(folder_in(out))
        assert kept.records == measured.records[:line]
        assert f"{MEASUREMENTS}:{line + 1}: is not valid JSON" in str(kept.problems[0])
        resume(folder_in(out), request_for(out), Watcher())
        assert complete(read_run(folder_in(out)), measured)


def test_a_disk_that_fills_up(measured: Run, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "256k"):
        filler = tmp_path / "disk" / "filler"

        def fill(folder: Path, count: int) -> None:
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass

        out = tmp_path / "disk" / "results"
        watcher = Watcher(fill)
        with pytest.raises(StoreError, match="disk is full; free some space, then --resume"):
            measure(request_for(out), watcher)
        kept = read_run(watcher.folder)
        assert not kept.problems
        assert kept.records == measured.records[: len(kept.records)] and kept.records
        filler.unlink()
        resume(watcher.folder, request_for(out), Watcher())
        assert complete(read_run(watcher.folder), measured)


def test_a_limit_on_the_size_of_files(measured: Run, tmp_path: Path) -> None:
    first = len(measured.path.joinpath(MEASUREMENTS).read_bytes().splitlines(keepends=True)[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    watcher = Watcher(
        lambda folder, count: resource.setrlimit(resource.RLIMIT_FSIZE, (first + 40, hard))
    )
    try:
        with pytest.raises(StoreError, match="larger than a file may be here"):
            measure(request_for(tmp_path), watcher)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    kept = read_run(watcher.folder)
    assert kept.records == measured.records[:1]
    assert not kept.problems
    resume(watcher.folder, request_for(tmp_path), Watcher())
    assert complete(read_run(watcher.folder), measured)


def test_a_results_folder_that_is_removed(measured: Run, tmp_path: Path) -> None:
    out = tmp_path / "results"
    with pytest.raises(StoreError, match="its folder was removed; start a new run"):
        measure(request_for(out), Watcher(lambda folder, count: shutil.rmtree(out)))
    outcome = measure(request_for(out), Watcher())
    assert complete(read_run(outcome.folder), measured)


def test_results_on_read_only_media_are_analysed_and_not_written(
    measured: Run, tmp_path: Path
) -> None:
    with mounted(tmp_path / "disc", "1m") as again:
        run = tmp_path / "disc" / "device" / "20260102T030405Z-0123abc"
        shutil.copytree(measured.path, run)
        again("ro")
        for arguments in (["report", run], ["compare", run, run], ["gate", run, run]):
            ended = CliRunner().invoke(app, list(map(str, arguments)))
            assert ended.exit_code in (0, 5), ended.output
        with pytest.raises(StoreError, match="is read-only; choose another place"):
            measure(request_for(tmp_path / "disc"), Watcher())
        with pytest.raises(StoreError, match="is read-only"):
            resume(run, request_for(tmp_path / "disc"), Watcher())


def test_two_runs_at_once_keep_apart(measured: Run, tmp_path: Path) -> None:
    pids = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            signal.alarm(300)
            with suppress(BaseException):
                measure(request_for(tmp_path), Watcher())
                os._exit(0)
            os._exit(1)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    folders = [file.parent for file in tmp_path.rglob(MEASUREMENTS)]
    assert len(folders) == 2
    assert all(complete(read_run(folder), measured) for folder in folders)


def test_a_run_is_not_resumed_while_it_is_written(measured: Run, tmp_path: Path) -> None:
    said: list[str] = []

    def meddle(folder: Path, count: int) -> None:
        with pytest.raises(StoreError) as caught:
            resume(folder, request_for(tmp_path), Watcher())
        said.append(str(caught.value))

    outcome = measure(request_for(tmp_path), Watcher(meddle))
    assert complete(read_run(outcome.folder), measured)
    assert all("is being written by another run; wait for it" in line for line in said)


CLOCK_SET = """
import sys, time
right = time.time
time.time = lambda: right() + float(sys.argv[1])
from membound.bench.worker import main
sys.argv = sys.argv[1:]
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("seconds", "limit", "status"), [(-86400, 1e-3, "skipped"), (86400, 300, "ok")]
)
def test_a_clock_that_is_set_neither_ends_nor_prolongs_a_run(
    measured: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    limit: float,
    status: str,
) -> None:
    """A real worker whose clock is a day off, and a supervisor whose clock is set at a record."""
    command = [sys.executable, "-P", "-c", CLOCK_SET, str(seconds)]
    monkeypatch.setattr(running, "Supervisor", partial(Supervisor, command=command))
    right = time.time

    def set_clock(folder: Path, count: int) -> None:
        monkeypatch.setattr(time, "time", lambda: right() + seconds)

    outcome = measure(replace(request_for(tmp_path), time_limit=limit), Watcher(set_clock))
    run = read_run(outcome.folder)
    assert not run.problems
    found = {r.variant: r for r in run.records if r.operation == "shift"}
    assert {found[""].status, found["last"].status} == {status}
    assert found["refuses"].status == "skipped"
    if status == "ok":
        assert complete(run, measured)
    else:
        assert "time limit reached" in str(found["last"].reason)


def test_a_run_that_is_resumed_has_its_time_anew(measured: Run, tmp_path: Path) -> None:
    request = replace(request_for(tmp_path), time_limit=300.0)
    watcher = Watcher(lambda folder, count: die())
    assert killed(lambda: measure(request, watcher)) == signal.SIGKILL
    folder = folder_in(tmp_path)
    text = (folder / store.ENVIRONMENT).read_text()
    began = read_run(folder).environment
    assert began is not None
    (folder / store.ENVIRONMENT).write_text(text.replace(began.started_at, "2020-01-01T00:00:00Z"))
    limits: list[float | None] = []
    follow = Supervisor.run

    def noted(self: Supervisor, plan: Plan) -> None:
        limits.append(plan.deadline)
        follow(self, plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Supervisor, "run", noted)
        resume(folder, request, Watcher())
    assert complete(read_run(folder), measured)
    (limit,) = limits
    assert limit is not None and 0 < limit - time.monotonic() <= 300


def test_nvml_that_vanishes_mid_run(
    measured: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selected = small()

    class Vanishing:
        """Answers NVML until the first record is there."""

        gone = False

        def __getattr__(self, name: str) -> object:
            return getattr(selected.machine, name)

        def nvml(self, query: str, identity: str = "") -> object:
            if self.gone:
                raise OSError("NVML_ERROR_GPU_IS_LOST")
            return [] if query.endswith("pids") else 1500

    machine = Vanishing()
    seen = replace(selected, machine=cast(Machine, machine), nvml="GPU-1")
    monkeypatch.setattr(running, "select", lambda *_: seen)
    outcome = measure(
        request_for(tmp_path), Watcher(lambda folder, count: setattr(machine, "gone", True))
    )
    run = read_run(outcome.folder)
    assert complete(run, measured)
    assert run.environment is not None
    assert run.environment.before["sm_clock_mhz"] == 1500
    assert "sm_clock_mhz" not in run.environment.after
    assert run.environment.processes_before == []
    assert run.environment.processes_after is None  # unknown is not none


@pytest.mark.parametrize("_stand_ins", ["last"], indirect=True)
def test_a_gpu_that_is_lost_mid_run(measured: Run, tmp_path: Path) -> None:
    watcher = Watcher()
    lost = "no CUDA-capable device is detected; what was measured is kept: .* --resume"
    with pytest.raises(WorkerCannotStart, match=lost):
        measure(request_for(tmp_path / "out"), watcher)
    kept = read_run(watcher.folder)
    assert not kept.problems
    before = [r.variant for r in measured.records].index("last")
    assert kept.records == measured.records[:before]
    assert WorkerCannotStart.exit_code == 4
    (tmp_path / "lost").rename(tmp_path / "lost.mended")
    resume(watcher.folder, request_for(tmp_path / "out"), Watcher())
    assert complete(read_run(watcher.folder), measured)


def test_what_is_not_complete_is_not_taken_for_it(measured: Run) -> None:
    assert complete(measured, measured)
    with pytest.raises(AssertionError):
        complete(replace(measured, records=measured.records[1:]), measured)
    with pytest.raises(AssertionError):
        complete(replace(measured, records=[*measured.records, measured.records[0]]), measured)
    assert not complete(replace(measured, environment=None), measured)
