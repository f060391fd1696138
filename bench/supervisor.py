"""Running workers so that one which crashes, hangs or poisons its device costs one case.

A record is on disk before the next case begins: the worker announces a case, then hands over its
record; a worker that ends in between loses exactly the cases it announced.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

import msgspec
from msgspec.structs import replace

from ..kernels.discovery import Catalogue
from ..results.record import Cache, Record
from .protocol import Event, Finished, Item, Plan, Poisoned, Started
from .records import MEMCPY, blank, case_name, ended

CASE_TIMEOUT_SECONDS = 300.0
"""Longest silence of a worker: covers compiling, verifying and sampling one implementation."""
_MAX_FUTILE_STARTS = 2


class WorkerCannotStart(Exception):
    """Workers end before their first case; the message is the last one's reason."""

    exit_code = 4


@dataclass
class Supervisor:
    """Drives the workers of one process of a run.

    on_record: puts a record on disk; on_case: told what is being measured.
    """

    catalogue: Catalogue
    on_record: Callable[[Record], None]
    on_case: Callable[[str], None]
    environ: dict[str, str]
    case_timeout: float = CASE_TIMEOUT_SECONDS
    command: list[str] = field(
        default_factory=lambda: [sys.executable, "-P", "-m", "membound.bench.worker"]
    )

    def run(self, plan: Plan) -> None:
        """Work through the plan, restarting the worker after each loss.

        Raises WorkerCannotStart where no worker gets as far as a case. Whatever is raised, no
        worker is left behind.
        """
        done = set(plan.done)
        futile = 0
        while True:
            worker = _Worker(self.command, self.environ)
            try:
                reason, lost, progress = self._follow(worker, plan, done)
            finally:
                worker.end()
            if reason is None:
                return
            for record in self._lost_records(plan, lost, done, reason):
                self._keep(record, done)
            futile = 0 if progress else futile + 1
            if futile >= _MAX_FUTILE_STARTS:
                raise WorkerCannotStart(reason.text)

    def _follow(
        self, worker: _Worker, plan: Plan, done: set[tuple[str, int]]
    ) -> tuple[_Loss | None, Started | None, bool]:
        """(why the worker ended early or None, what it had announced, whether it got anywhere)."""
        worker.send(msgspec.json.encode(replace(plan, done=sorted(done))))
        current: Started | None = None
        progress = False
        for event in worker.events(self.case_timeout):
            if isinstance(event, Started):
                current, progress = event, True
                self.on_case(event.cases[0])
            elif isinstance(event, Finished):
                progress = True
                self._keep(event.record, done)
            elif isinstance(event, Poisoned):
                return _Loss("failed", event.reason), None, True
            else:
                return event, current, progress
        return None, None, True

    def _keep(self, record: Record, done: set[tuple[str, int]]) -> None:
        if (record.case, record.position) not in done:
            self.on_record(record)
            done.add((record.case, record.position))

    def _lost_records(
        self, plan: Plan, lost: Started | None, done: set[tuple[str, int]], loss: _Loss
    ) -> Iterator[Record]:
        if lost is None:
            return
        for item, label, cache, position in _cases(plan):
            case = case_name(item, label, cache)
            if case in lost.cases and position == lost.position and (case, position) not in done:
                record = blank(self.catalogue, item, label, cache, plan.process, position)
                yield ended(record, loss.status, loss.text)


@dataclass(frozen=True)
class _Loss:
    """How a worker ended that did not finish its plan."""

    status: str
    text: str


def _cases(plan: Plan) -> Iterator[tuple[Item, str, Cache, int]]:
    for item in plan.items:
        for label, position in zip(item.implementations, item.positions, strict=True):
            for cache in item.caches:
                yield item, label, cache, position
        for cache in plan.memcpy.caches:
            yield plan.memcpy, MEMCPY, cache, item.memcpy_position


class _Worker:
    """A worker process in a session of its own, and the pipe its events come through."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        self._events, writing = os.pipe()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `end`)
        try:
            self._process = subprocess.Popen(
                [*command, str(writing)],
                stdin=subprocess.PIPE,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(writing,),
                env=environ,
                start_new_session=True,
            )
        finally:
            os.close(writing)

    def send(self, plan: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it ended already; its exit status tells
            self._process.stdin.write(plan)
            self._process.stdin.close()

    def events(self, timeout: float) -> Iterator[Event | _Loss]:
        """Events as they come; last a _Loss unless the worker finished its plan."""
        decoder = msgspec.json.Decoder(Event)
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            pending, limit = b"", max(timeout, CASE_TIMEOUT_SECONDS)  # starting has its own time
            while True:
                if not selector.select(limit):
                    yield _Loss("timeout", f"gave no sign of life for {limit:g} s")
                    return
                limit = timeout
                chunk = os.read(self._events, 1 << 16)
                if not chunk:
                    break
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    yield decoder.decode(line)
        loss = self._loss()
        if loss is not None:
            yield loss

    def end(self) -> None:
        """Kill the worker and everything it started; nothing is left behind."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        os.close(self._events)
        self._errors.close()

    def _loss(self) -> _Loss | None:
        try:
            status = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return _Loss("timeout", "closed its events but did not end")
        if status == 0:
            return None
        return _Loss("failed", f"worker {_how(status)}{self._last_words()}")

    def _last_words(self) -> str:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 4096))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1].strip()[:200]}" if lines else ""


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def worker_environ(cores: int | None) -> dict[str, str]:
    """The environment of a worker: modules loaded eagerly, one set of threads, no pools."""
    environ = dict(os.environ)
    environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    # Inductor's pool of compile processes would outlive a worker that is killed.
    environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if cores is not None:
        for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS"):
            environ[name] = str(cores)
        environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return environ
