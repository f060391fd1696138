"""Runs to be disturbed: what watches one, stands in for its workers, or takes its disk away.

The stand-ins hand over the records of a run that was measured: real processes that start at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from membound.bench.device.select import Selected, select
from membound.bench.presets import Selection
from membound.bench.run import Request
from membound.kernels.target import MIB
from membound.results.reading import Run
from membound.results.record import Record
from membound.results.store import MEASUREMENTS

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
