"""Runs on disk, written so that nothing is lost.

A run is a folder `<device>/<UTC>-<commit7>/` with `environment.json`, replaced as a whole, and
`measurements.jsonl`, to which whole lines are appended.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from .checked import T, decode, printable
from .record import Environment, Record

ENVIRONMENT = "environment.json"
MEASUREMENTS = "measurements.jsonl"
MAX_LINE = 1 << 20
"""Longest line of measurements.jsonl in bytes (some 80,000 samples); longer ones are refused."""


class StoreError(Exception):
    """A folder or file that cannot be used: one line with the path and the remedy."""

    exit_code = 2


def create_run(device_folder: Path, started: datetime, commit: str | None) -> Path:
    """Make and return a new `<UTC>-<commit7>` folder, with a suffix where that name is taken.

    Raises StoreError where the folder cannot be made.
    """
    stamp = started.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    known = re.fullmatch(r"[0-9a-f]{7,64}", commit or "")
    name = f"{stamp}-{known[0][:7] if known else 'unknown'}"
    number = 1
    while True:
        run = device_folder / (name if number == 1 else f"{name}-{number}")
        try:
            device_folder.mkdir(parents=True, exist_ok=True)
            run.mkdir()
        except FileExistsError as error:
            if not device_folder.is_dir():
                raise store_error(error, device_folder) from error
            number += 1
        except OSError as error:
            raise store_error(error, device_folder) from error
        else:
            return run


class RunWriter:
    """Appends records to a run and replaces its environment; one writer at a time.

    Opening cuts off a last line that was never finished (its case was not recorded); `cut` then
    says so. Raises StoreError where the disk is full, read-only or gone, or another process
    writes to the run; ValueError for a value that could not be read back.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.cut: str | None = None
        path = run / MEASUREMENTS
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise store_error(error, path) from error
        try:
            self._lock(path)
            self._mend()
        except OSError as error:
            self.close()
            raise store_error(error, path) from error
        except StoreError:
            self.close()
            raise

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def discard(self) -> None:
        """Remove the run, of which nothing was measured; what else lies in its folder stays."""
        with suppress(OSError):
            for name in (ENVIRONMENT, MEASUREMENTS):
                (self.run / name).unlink()
            self.run.rmdir()

    def append(self, record: Record) -> None:
        """Add one line; on return it is on disk. A line that did not fit leaves no trace."""
        line = _encoded(record) + b"\n"
        if len(line) > MAX_LINE:
            raise ValueError(f"{record.case}: a record of {len(line)} bytes; at most {MAX_LINE}")
        path = self.run / MEASUREMENTS
        try:
            if not path.exists():
                raise FileNotFoundError(errno.ENOENT, "was removed", str(path))
            before = os.fstat(self._file).st_size
            try:
                while line:  # what is written in part says why when the rest is tried
                    line = line[os.write(self._file, line) :]
                os.fsync(self._file)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._file, before)
                raise
        except OSError as error:
            raise store_error(error, path) from error

    def write_environment(self, environment: Environment) -> None:
        """Replace environment.json: a reader sees the old file or the new one, never a part."""
        content = msgspec.json.format(_encoded(environment), indent=2) + b"\n"
        path = self.run / ENVIRONMENT
        temporary = self.run / f".{ENVIRONMENT}.{os.getpid()}"
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise store_error(error, path) from error

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"{path} is being written by another run; wait for it") from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise

    def _mend(self) -> None:
        size = os.fstat(self._file).st_size
        start = max(0, size - MAX_LINE)
        tail = os.pread(self._file, size - start, start)
        last = tail[tail.rfind(b"\n") + 1 :]
        if not last:
            return
        if decode(last, Record).value is not None:
            os.write(self._file, b"\n")
            return
        os.ftruncate(self._file, size - len(last))
        os.fsync(self._file)
        self.cut = f"{self.run / MEASUREMENTS}: cut an unfinished last line of {len(last)} bytes"


def _encoded(value: T) -> bytes:
    """Strict JSON that `decode` accepts; numpy scalars become numbers, text one printable line."""
    kind = type(value)
    tree = _plain(msgspec.to_builtins(value, enc_hook=_builtin))
    for name in ("max_error", "tolerance"):  # a kernel that wrote NaN has no error that is a number
        if tree.get(name) is not None and not abs(tree[name]) <= 1e300:
            tree[name] = None
    if tree.get("seconds"):
        tree["seconds"] = [
            round(value, 9) if isinstance(value, float) else value for value in tree["seconds"]
        ]
    try:
        decoded = decode(json.dumps(tree, allow_nan=False).encode(), kind)
    except ValueError as error:
        raise ValueError(f"{kind.__name__} holds NaN or infinity: {error}") from error
    if decoded.value is None:
        raise ValueError(f"{tree.get('case', kind.__name__)}: {decoded.flaws[0]}")
    return msgspec.json.encode(decoded.value)


def _plain(tree: Any) -> Any:
    if isinstance(tree, str):
        return printable(tree)
    if isinstance(tree, dict):
        return {_plain(key): _plain(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_plain(value) for value in tree]
    return tree


def _builtin(value: Any) -> object:
    """A numpy or torch scalar as a Python number, a dtype by its name."""
    if hasattr(value, "item"):
        return value.item()
    return str(getattr(value, "name", value))


def store_error(error: OSError, path: Path) -> StoreError:
    """The error of the system as one line with the path and the remedy."""
    remedies = {
        errno.EROFS: "is read-only; choose another place with --out",
        errno.EACCES: "may not be written by this user; choose another place with --out",
        errno.EPERM: "may not be written by this user; choose another place with --out",
        errno.ENOSPC: "does not fit, the disk is full; free some space, then --resume this run",
        errno.EFBIG: "is larger than a file may be here; see ulimit -f, then --resume this run",
        errno.EDQUOT: "does not fit, the quota is used up; free some space, then --resume this run",
        errno.ENOENT: "is gone, its folder was removed; start a new run",
        errno.ENOTDIR: "lies below something that is not a folder; choose another with --out",
        errno.EEXIST: "is not a folder; choose another place with --out",
    }
    remedy = remedies.get(error.errno or 0, f"cannot be used: {error.strerror or error}")
    return StoreError(f"{printable(str(path))} {remedy}")
