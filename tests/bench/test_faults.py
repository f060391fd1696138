"""What a machine does to a run: kills, full disks, folders that go, clocks and devices that change.

One run is measured; after that its workers are stand-ins that hand over the same records: real
processes that start at once. A supervisor that is killed is a fork of this process.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import time
from typing import NoReturn, cast

import pytest
from membound.bench import run as running
from membound.bench.device.probe import Machine
from membound.bench.device.select import Selected, select
from membound.bench.presets import Selection
from membound.bench.protocol import Plan
from membound.bench.run import Request, measure, resume
from membound.bench.supervisor import Supervisor, WorkerCannotStart
from membound.cli import app
from membound.kernels.target import MIB
from membound.results import store
from membound.results.reading import Run, read_run
from membound.results.record import Record
from membound.results.store import MEASUREMENTS, StoreError
from typer.testing import CliRunner

FAULTY = Path(__file__).parent / "faulty"

REPLAYING = """
import os, sys, msgspec
from membound.bench.protocol import Finished, Plan, Poisoned, Started
from membound.bench.worker import depend_on_parent, write
from membound.results.reading import read_run

depend_on_parent()
plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
lost, descriptor = sys.argv[2], int(sys.argv[-1])
if os.path.exists(lost):
    sys.exit("no CUDA-capable device is detected")
done = set(plan.done)
for record in read_run(sys.argv[1]).records:
    if record.process == plan.process and (record.case, record.position) not in done:
        write(descriptor, msgspec.json.encode(Started([record.case], record.position)) + b"\\n")
        if record.variant == sys.argv[3] and not os.path.exists(lost + ".mended"):
            open(lost, "w").close()
            write(descriptor, msgspec.json.encode(Poisoned("CUDA_ERROR_ECC")) + b"\\n")
            os._exit(75)
        write(descriptor, msgspec.json.encode(Finished(record)) + b"\\n")
"""


class Watcher:
    """Does something to the run at its records."""

    def __init__(self, then: Callable[[Path, int], None] = lambda folder, count: None) -> None:
        self.then, self.count, self.folder = then, 0, Path()

    def begin(self, folder: Path, selected: Selected, total: int) -> None:
        self.folder = folder

    def note(self, line: str) -> None:
        pass

    def case(self, name: str, process: int) -> None:
        pass

    def record(self, record: Record) -> None:
        self.count += 1
        self.then(self.folder, self.count)


def small(*_: object, **__: object) -> Selected:
    """A last-level cache of 1 MiB: buffers, eviction and the reference copy stay small."""
    selected = select("cpu")
    return replace(selected, target=replace(selected.target, llc_bytes=MIB))


def request_for(out: Path) -> Request:
    labels = ("cpu", "cpu:last", "cpu:refuses")
    return Request(
        Selection("full", operations=("shift",), implementations=labels, ceilings=False),
        "cpu",
        processes=1,
        out=out,
        kernels=(FAULTY,),
        seconds_per_case=0.02,
    )


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


def workers(tmp_path: Path) -> list[str]:
    """Worker processes of this test that still run; those just killed have a moment to go."""
    for _ in range(100):
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if str(tmp_path / "lost").encode() in (folder / "cmdline").read_bytes():
                    found.append(folder.name)
        if not found:
            return []
        subprocess.run(["sleep", "0.05"], check=True)
    return found


def complete(run: Run, real: Run) -> bool:
    """Everything measured is there once, nothing is damaged, and the run says when it ended."""
    key = [(r.process, r.case, r.position) for r in run.records]
    assert sorted(key) == sorted((r.process, r.case, r.position) for r in real.records)
    assert not run.problems
    return run.environment is not None and run.environment.finished_at is not None


def killed(act: Callable[[], object]) -> int:
    """What ended a fork of this process that does `act`: a signal."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(300)  # a fork that hangs fails its test instead of holding up all
        with suppress(BaseException):
            act()
        os._exit(1)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def folder_in(out: Path) -> Path:
    (file,) = out.rglob(MEASUREMENTS)
    return file.parent


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
            die()

        def act() -> None:
            store.os.write = half  # type: ignore[attr-defined]
            measure(request_for(out), Watcher())  # noqa: B023

        assert killed(act) == signal.SIGKILL
        kept = read_run(folder_in(out))
        assert kept.records == measured.records[:line]
        assert f"{MEASUREMENTS}:{line + 1}: is not valid JSON" in str(kept.problems[0])
        resume(folder_in(out), request_for(out), Watcher())
        assert complete(read_run(folder_in(out)), measured)


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Callable[[str], None]]:
    """A file system of its own on `folder`; the value mounts it anew with other options."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("file systems may not be mounted here")

    def again(options: str) -> None:
        command = ["mount", "-o", f"remount,{options}", str(folder)]
        subprocess.run(command, check=True, capture_output=True)

    try:
        yield again
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


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


@pytest.mark.parametrize("seconds", [-86400.0, 86400.0])
def test_a_clock_that_jumps(
    measured: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(running, "time", lambda: time() + seconds)
    deadlines: list[float | None] = []
    plans = Supervisor.run

    def noted(self: Supervisor, plan: Plan) -> None:
        deadlines.append(plan.deadline)
        plans(self, plan)

    monkeypatch.setattr(Supervisor, "run", noted)
    outcome = measure(replace(request_for(tmp_path), time_limit=60.0), Watcher())
    assert complete(read_run(outcome.folder), measured)
    assert all(limit is not None and limit <= time() + seconds + 60 for limit in deadlines)


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
    with pytest.raises(WorkerCannotStart, match="no CUDA-capable device is detected"):
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
