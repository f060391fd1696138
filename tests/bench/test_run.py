"""Whole runs through real worker processes on the CPU, with kernels that misbehave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from membound.bench import run as running
from membound.bench import worker
from membound.bench.device.select import Selected, select
from membound.bench.presets import Selection, UnknownName
from membound.bench.process import worker_environ
from membound.bench.protocol import Missing, Poisoned
from membound.bench.resuming import CannotResume
from membound.bench.run import (
    NothingToMeasure,
    Outcome,
    Request,
    measure,
    resume,
)
from membound.bench.session import ending
from membound.bench.supervisor import Supervisor, WorkerCannotStart
from membound.bench.walk import Walk
from membound.kernels.spec import CannotPrepare, DoesNotCompile
from membound.kernels.target import MIB
from membound.results import store
from membound.results.reading import read_run
from membound.results.record import Record

FAULTY = Path(__file__).parent / "faulty"


class Watcher:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.total = 0

    def begin(self, folder: Path, selected: Selected, total: int) -> None:
        self.total = total

    def note(self, line: str) -> None:
        pass

    def case(self, name: str, process: int) -> None:
        pass

    def record(self, record: Record) -> None:
        self.records.append(record)


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A last-level cache of 1 MiB: buffers, eviction and the reference copy stay small."""

    def small(*arguments: object, **names: object) -> Selected:
        selected = select("cpu")
        return replace(selected, target=replace(selected.target, llc_bytes=MIB))

    monkeypatch.setattr(running, "select", small)


def request_for(out: Path, *variants: str, **changes: object) -> Request:
    labels = tuple(f"cpu:{variant}" if variant else "cpu" for variant in variants)
    request = Request(
        selection=Selection("full", operations=("shift",), implementations=labels, ceilings=False),
        device="cpu",
        processes=1,
        out=out,
        kernels=(FAULTY,),
        seconds_per_case=0.02,
        case_timeout=60.0,
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def measured(outcome: Outcome) -> dict[str, Record]:
    run = read_run(outcome.folder)
    assert not run.problems
    return {r.case.split("/")[2]: r for r in run.records if r.implementation != "memcpy"}


def test_a_run_leaves_records_and_an_environment(tmp_path: Path) -> None:
    watcher = Watcher()
    outcome = measure(request_for(tmp_path, "", processes=2), watcher)
    run = read_run(outcome.folder)
    assert not run.problems
    assert run.environment is not None
    assert run.environment.finished_at is not None
    assert run.environment.seed == 0
    ours = [r for r in run.records if r.operation == "shift"]
    assert [r.process for r in ours] == [0, 1]
    for record in ours:
        assert record.status == "ok"
        assert record.timer == "wall"
        assert len(record.seconds) >= 10
        assert record.bytes_read == record.bytes_written == 512 * 96 * 4
        assert record.footprint_bytes is not None
        assert record.footprint_bytes >= 4 * MIB
    copies = [r for r in run.records if r.implementation == "memcpy"]
    assert [r.status for r in copies] == ["ok", "ok"]
    assert watcher.total == 2


def test_every_fault_costs_its_own_case_only(tmp_path: Path) -> None:
    request = request_for(
        tmp_path, "segfault", "abort", "killed", "out_of_memory", "raises", "sticky",
        "does_not_compile", "refuses", "unwritten_tail", "wrong_later", "last",
    )  # fmt: skip
    outcome = measure(request, Watcher())
    found = measured(outcome)
    expected = {
        "cpu:segfault": ("failed", "was ended by SIGSEGV"),
        "cpu:abort": ("failed", "was ended by SIGABRT"),
        "cpu:killed": ("failed", "was ended by SIGKILL"),
        "cpu:out_of_memory": ("failed", "alloc"),
        "cpu:raises": ("failed", "RuntimeError: first line of the trouble"),
        "cpu:sticky": ("failed", "RuntimeError: CUDA error: an illegal memory access"),
        "cpu:does_not_compile": ("failed", "Unknown attribute 'missing'"),
        "cpu:refuses": ("skipped", "needs a device that nobody has"),
        "cpu:unwritten_tail": ("wrong", "y: error"),
        "cpu:wrong_later": ("wrong", "after timing: y differs from its verified bytes"),
    }
    for label, (status, words) in expected.items():
        record = found[label]
        assert record.status == status, record
        assert record.reason is not None
        assert words in record.reason
        assert "\n" not in record.reason
        assert record.seconds == []
    assert found["cpu:last"].status == "ok"
    assert outcome.counts["failed"] == 7
    assert _workers_of(os.getpid()) == set()
    whole = read_run(outcome.folder)
    assert whole.environment is not None and whole.environment.finished_at is not None
    assert len(whole.records) == len(request.selection.implementations) + 1  # and the copy
    watcher = Watcher()
    assert resume(outcome.folder, request, watcher).counts == outcome.counts
    assert watcher.total == 0 and read_run(outcome.folder).records == whole.records


def test_a_compilers_error_is_a_failure_and_tells_where() -> None:
    known = DoesNotCompile('silu.cu for sm_90: silu.cu(1): error: identifier "x" is undefined')
    assert ending(known) == ("failed", f"does not compile: {known}")
    assert ending(CannotPrepare("needs clusters")) == ("skipped", "needs clusters")
    long = ValueError("at 3:1:\n def k():\n   ^\n" + "x" * 999)
    status, reason = ending(long)
    assert status == "failed"
    assert reason.startswith("ValueError: at 3:1:; def k():; xxx") and len(reason) < 320
    log = "`ptxas` stderr:\nptxas fatal : 'sm_121a' is unknown\nRepro command: ptxas -v"
    _, reason = ending(RuntimeError(f"Internal Triton PTX codegen error\n{log}"))
    assert reason == (
        "RuntimeError: Internal Triton PTX codegen error; ptxas fatal : 'sm_121a' is unknown"
    )


def test_a_hanging_kernel_is_ended_and_nothing_is_left_behind(tmp_path: Path) -> None:
    outcome = measure(request_for(tmp_path, "hang", "last", case_timeout=8.0), Watcher())
    found = measured(outcome)
    assert found["cpu:hang"].status == "timeout"
    assert "no sign of life for 8 s" in (found["cpu:hang"].reason or "")
    assert found["cpu:last"].status == "ok"
    assert _workers_of(os.getpid()) == set()


def test_an_interrupted_run_is_completed_by_resume(tmp_path: Path) -> None:
    request = request_for(tmp_path, "", "last", processes=2)

    class Interrupting(Watcher):
        def record(self, record: Record) -> None:
            super().record(record)
            if record.operation == "shift":
                raise KeyboardInterrupt

    interrupting = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        measure(request, interrupting)
    (folder,) = [path.parent for path in tmp_path.rglob("measurements.jsonl")]
    kept = read_run(folder).records
    assert [r.case for r in kept] == [r.case for r in interrupting.records]
    outcome = resume(folder, request, Watcher())
    run = read_run(folder)
    assert not run.problems
    assert run.records[: len(kept)] == kept
    ours = sorted(
        (r.process, r.implementation, r.variant)
        for r in run.records
        if r.variant or r.implementation == "cpu"
    )
    assert ours == [(0, "cpu", ""), (0, "cpu", "last"), (1, "cpu", ""), (1, "cpu", "last")]
    assert outcome.counts["ok"] == len(run.records)


def test_a_run_is_completed_with_its_own_options_alone(tmp_path: Path) -> None:
    request = replace(request_for(tmp_path, "last"), command=("membound", "run", "a b"))
    folder = measure(request, Watcher()).folder
    kept = read_run(folder).records
    with pytest.raises(CannotResume, match="do not select; it is of: membound run 'a b'"):
        resume(folder, request_for(tmp_path, ""), Watcher())
    assert read_run(folder).records == kept


def test_fewer_cases_than_it_began_with_do_not_complete_a_run(tmp_path: Path) -> None:
    """Else it would be taken for finished, without the cases that nobody measured."""
    request = replace(request_for(tmp_path, "", "last"), command=("membound", "run", "a b"))

    class Interrupting(Watcher):
        def record(self, record: Record) -> None:
            super().record(record)
            if record.operation == "shift" and record.variant == "":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(request, Interrupting())
    (folder,) = [path.parent for path in tmp_path.rglob("measurements.jsonl")]
    with pytest.raises(CannotResume, match=r"other cases than .* it is of: membound run 'a b'"):
        resume(folder, request_for(tmp_path, ""), Watcher())
    environment = read_run(folder).environment
    assert environment is not None and environment.finished_at is None


def test_odd_processes_walk_the_other_way(tmp_path: Path) -> None:
    outcome = measure(request_for(tmp_path, "", "last", processes=2), Watcher())
    records = [r for r in read_run(outcome.folder).records if r.operation == "shift"]
    assert [(r.process, r.variant) for r in records] == [(0, ""), (0, "last"), (1, "last"), (1, "")]


def test_what_a_time_limit_leaves_out_is_recorded(tmp_path: Path) -> None:
    outcome = measure(request_for(tmp_path, "", "last", time_limit=1e-3), Watcher())
    records = read_run(outcome.folder).records
    assert {r.status for r in records} == {"skipped"}
    assert {r.reason for r in records} == {"time limit reached before this case"}


def test_a_worker_that_cannot_start_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorkerCannotStart, match="exit status 1"):
        measure(request_for(tmp_path, ""), Watcher())
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(list(tmp_path.rglob("*"))) == 1  # the device's folder


def test_names_that_select_nothing(tmp_path: Path) -> None:
    request = request_for(tmp_path, "")
    with pytest.raises(UnknownName, match="unknown operation 'shfit'; nearest: shift"):
        measure(replace(request, selection=Selection(operations=("shfit",))), Watcher())
    with pytest.raises(UnknownName, match="unknown implementation 'cuad'; nearest: cuda"):
        measure(replace(request, selection=Selection(implementations=("cuad",))), Watcher())
    with pytest.raises(UnknownName, match="unknown dtype 'bfloat'; nearest: bfloat16"):
        measure(replace(request, selection=Selection(dtypes=("bfloat",))), Watcher())
    with pytest.raises(UnknownName, match="unknown preset 'quik'; nearest: quick"):
        measure(replace(request, selection=Selection(preset="quik")), Watcher())
    with pytest.raises(UnknownName, match="no timer 'events' on this device; valid: wall"):
        measure(replace(request, timer="events"), Watcher())
    with pytest.raises(NothingToMeasure, match="needs a CUDA device"):
        selection = Selection(operations=("copy",), implementations=("triton",))
        measure(replace(request, selection=selection), Watcher())
    assert not list(tmp_path.iterdir())


def test_an_output_folder_that_cannot_be_written_is_said_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    watcher = Watcher()
    with pytest.raises(store.StoreError, match="file"):
        measure(request_for(tmp_path / "file", ""), watcher)
    assert watcher.total == 0


def test_a_worker_does_not_outlive_its_supervisor(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from membound.bench.presets import Selection\n"
        "from membound.bench.run import Request, measure\n"
        "from membound.bench.show import Progress\n"
        "measure(Request(Selection('full', ('shift',), implementations=('cpu:hang',)), 'cpu',\n"
        f"    out=Path({str(tmp_path)!r}), kernels=(Path({str(FAULTY)!r}),)), Progress())\n"
    )
    process = subprocess.Popen([sys.executable, "-P", "-c", script], stderr=subprocess.DEVNULL)
    try:
        assert _until(lambda: _workers_of(process.pid))
        workers = _workers_of(process.pid)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert _until(lambda: not any(_is_worker(pid) for pid in workers))


def _workers_of(parent: int) -> set[int]:
    """Worker processes that run, of this supervisor."""
    pids = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return {pid for pid in pids if _is_worker(pid, parent)}


def _is_worker(pid: int, parent: int | None = None) -> bool:
    folder = Path("/proc") / str(pid)
    try:
        words = (folder / "cmdline").read_bytes()
        state, started_by, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    ours = parent is None or int(started_by) == parent
    return b"membound.bench.worker" in words and state != "Z" and ours


def _until(condition: object) -> bool:
    assert callable(condition)
    pause = threading.Event()
    return any(condition() or pause.wait(0.05) for _ in range(1200))


def test_settings_for_other_work_do_not_reach_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync",
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "CUDA_LAUNCH_BLOCKING": "1",
    }
    for name, value in (settings | {"CUDA_VISIBLE_DEVICES": "1"}).items():
        monkeypatch.setenv(name, value)
    environ = worker_environ(None)
    assert not settings.keys() & environ.keys()
    assert environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert worker_environ(3)["OMP_NUM_THREADS"] == "3"


def test_what_the_device_refuses_is_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = msgspec.json.encode(Missing("a limit", "not supported")) + b"\n"
    script = f"import os, sys; sys.stdin.read(); os.write(int(sys.argv[1]), {says!r})"
    command = [sys.executable, "-c", script]
    monkeypatch.setattr(running, "Supervisor", partial(Supervisor, command=command))
    outcome = measure(request_for(tmp_path, ""), Watcher())
    environment = read_run(outcome.folder).environment
    assert environment is not None
    assert environment.missing["a limit"] == "not supported"


def test_a_worker_says_first_what_the_device_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(missing={"a limit": "CUDA_ERROR_NOT_SUPPORTED"})
    monkeypatch.setattr("membound.bench.start.start", lambda plan: session)
    monkeypatch.setattr(Walk, "run", lambda self: iter([Poisoned("the end")]))
    events = list(worker._events(SimpleNamespace()))  # type: ignore[arg-type]
    assert events == [Missing("a limit", "CUDA_ERROR_NOT_SUPPORTED"), Poisoned("the end")]
