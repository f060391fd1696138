"""A worker process as its supervisor sees it: what it is told, what it says, how it ends."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Generic, TypeVar

import msgspec

CASE_TIMEOUT_SECONDS = 300.0
"""Longest silence of a worker: covers compiling, verifying and sampling one implementation."""

Said = TypeVar("Said")


@dataclass(frozen=True)
class Loss:
    """How a worker ended that did not finish."""

    status: str
    text: str


class Worker(Generic[Said]):
    """A worker that leads a process group of its own, and the pipe its events come through."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        decoder: msgspec.json.Decoder[Said],
    ) -> None:
        self._decoder = decoder
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

    def send(self, message: bytes, last: bool = True) -> None:
        """Write to its standard input; close that after the last message."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it ended already; its exit status tells
            self._process.stdin.write(message)
            self._process.stdin.flush()
            if last:
                self._process.stdin.close()

    def events(self, timeout: float) -> Iterator[Said | Loss]:
        """Events as they come; last a Loss unless the worker finished.

        timeout: longest silence in seconds, of the time that the reader waits.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            pending, limit = b"", max(timeout, CASE_TIMEOUT_SECONDS)  # starting has its own time
            while True:
                if not selector.select(limit):
                    yield Loss("timeout", f"gave no sign of life for {limit:g} s")
                    return
                limit = timeout
                chunk = os.read(self._events, 1 << 16)
                if not chunk:
                    break
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    yield self._decoder.decode(line)
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

    def _loss(self) -> Loss | None:
        try:
            status = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return Loss("timeout", "closed its events but did not end")
        if status == 0:
            return None
        return Loss("failed", f"worker {_how(status)}{self._last_words()}")

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


_FOR_OTHER_WORK = frozenset(
    (
        "PYTORCH_CUDA_ALLOC_CONF",  # buffers come from cudaMalloc, in blocks that are kept
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "CUDA_LAUNCH_BLOCKING",  # a launch behind a gate would wait for it
    )
)
"""Settings that people have for training or debugging, and that would change what is measured."""


def worker_environ(cores: int | None) -> dict[str, str]:
    """The environment of a worker: modules loaded eagerly, one set of threads, no pools."""
    environ = {name: value for name, value in os.environ.items() if name not in _FOR_OTHER_WORK}
    environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    # Inductor's pool of compile processes would outlive a worker that is killed.
    environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if cores is not None:
        for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS"):
            environ[name] = str(cores)
        environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return environ
