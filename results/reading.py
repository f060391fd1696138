"""Runs on disk, read so that nothing is believed unchecked and nothing is skipped in silence.

Reading never raises for what is in a file: each damaged line is one `Problem` and the rest is
read. Memory is bounded by the longest line that is accepted.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from .checked import decode, printable
from .record import Environment, Record
from .store import ENVIRONMENT, MAX_LINE, MEASUREMENTS, StoreError

MAX_ENVIRONMENT = 1 << 20
MAX_PROBLEMS = 100
"""Problems listed for one file; the rest are counted."""

_STATED = (
    "operation",
    "family",
    "direction",
    "implementation",
    "variant",
    "dtype",
    "shape",
    "cache",
    "placement",
    "bytes_read",
    "bytes_written",
    "schedule_bytes",
    "unfused_bytes",
    "flops",
)
"""Fields that every record of a case has alike."""


@dataclass(frozen=True)
class Problem:
    """What is wrong in one place of a file; `str` gives the one line to show."""

    file: str
    line: int | None
    message: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{printable(place)}: {self.message}"


@dataclass(frozen=True)
class Run:
    """What could be read of a run. `environment` is None where that file is missing or damaged.

    notes: what was ignored without harm, such as fields of a newer version.
    """

    path: Path
    environment: Environment | None
    records: list[Record]
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_run(path: str | Path) -> Run:
    """Read a run folder, or the folder of one of its two files.

    Raises StoreError where there is no run; what is damaged inside one is in `Run.problems`.
    """
    given = Path(path)
    folder = given.parent if given.name in (ENVIRONMENT, MEASUREMENTS) else given
    if not _is_run(folder):
        raise StoreError(_no_run(given))
    problems = _Problems()
    notes: list[str] = []
    environment = _read_environment(folder / ENVIRONMENT, problems, notes)
    records = _read_records(folder / MEASUREMENTS, problems, notes)
    return Run(folder, environment, records, problems.listed(), notes)


def find_runs(patterns: Iterable[str | Path]) -> list[Path]:
    """Run folders named by folders of runs, of devices, of results, or globs; oldest first.

    Raises StoreError for a pattern that names no run.
    """
    found: dict[Path, Path] = {}
    for pattern in patterns:
        matches = [Path(pattern)]
        if not os.path.lexists(pattern) and glob.has_magic(str(pattern)):
            # Path.glob takes no absolute pattern.
            matches = [Path(m) for m in glob.iglob(str(pattern), recursive=True)]  # noqa: PTH207
        runs = [run for match in matches for run in _runs_at(match)]
        if not runs:
            raise StoreError(_no_run(Path(pattern)))
        for run in runs:
            found.setdefault(run.resolve(), run)
    return sorted(found.values(), key=_age)


def _is_run(folder: Path) -> bool:
    return any(os.path.lexists(folder / name) for name in (ENVIRONMENT, MEASUREMENTS))


def _no_run(path: Path) -> str:
    shown = printable(str(path))
    if not os.path.lexists(path):
        return f"{shown} does not exist; name a run folder, a device folder or results/"
    return f"{shown} holds no run; a run is a folder with {MEASUREMENTS} and {ENVIRONMENT}"


def _runs_at(path: Path) -> Iterator[Path]:
    if path.name in (ENVIRONMENT, MEASUREMENTS) and os.path.lexists(path):
        yield path.parent
    elif os.path.isdir(path):  # noqa: PTH112 (False, not an error, for a name that is too long)
        if _is_run(path):
            yield path
            return
        for name in (ENVIRONMENT, MEASUREMENTS):
            for depth in ("*/", "*/*/"):
                yield from (file.parent for file in path.glob(depth + name))


def _age(run: Path) -> tuple[str, int, str]:
    """Folder names begin with the time; a renamed folder is as old as its environment says."""
    name = run.resolve().name
    started = name[:16]
    if not (started[:8].isdigit() and started[8:9] == "T"):
        environment = _read_environment(run / ENVIRONMENT, _Problems(), [])
        text = environment.started_at if environment else ""
        started = text[:19].replace("-", "").replace(":", "") + "Z"
    number = name.rsplit("-", 1)[-1]
    return started, int(number) if number.isdecimal() and len(number) < 5 else 1, str(run)


class _Problems:
    """Problems in the order found; beyond MAX_PROBLEMS only counted."""

    def __init__(self) -> None:
        self._found: list[Problem] = []
        self._more = 0

    def add(self, file: Path, line: int | None, message: str) -> None:
        if len(self._found) < MAX_PROBLEMS:
            self._found.append(Problem(str(file), line, printable(message)))
        else:
            self._more += 1
            self._last = str(file)

    def listed(self) -> list[Problem]:
        if not self._more:
            return self._found
        return [*self._found, Problem(self._last, None, f"{self._more} more problems")]


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read. Raises OSError, also for what is no file: a pipe would wait forever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _NotRegular(errno.EINVAL, "is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


class _NotRegular(OSError):
    """A folder, pipe or device where a file is expected."""


def _open(path: Path, problems: _Problems) -> BinaryIO | None:
    try:
        return open_regular(path)
    except FileNotFoundError:
        problems.add(path, None, "is missing")
    except _NotRegular:
        problems.add(path, None, "is not a regular file")
    except OSError as error:
        problems.add(path, None, f"cannot be read: {error.strerror}")
    return None


def _read_environment(path: Path, problems: _Problems, notes: list[str]) -> Environment | None:
    file = _open(path, problems)
    if file is None:
        return None
    try:
        with file:
            data = file.read(MAX_ENVIRONMENT + 1)
    except OSError as error:
        problems.add(path, None, f"cannot be read: {error.strerror}")
        return None
    if len(data) > MAX_ENVIRONMENT:
        problems.add(path, None, f"is longer than {MAX_ENVIRONMENT} bytes; it is not read")
        return None
    data = _without_mark(data, path, None, problems)
    if not data.strip():
        problems.add(path, None, "is empty, not valid JSON; one JSON object")
        return None
    decoded = decode(data, Environment)
    for flaw in decoded.flaws:
        problems.add(path, None, str(flaw))
    if decoded.unknown:
        notes.append(f"{path}: ignored fields this version does not know: {_few(decoded.unknown)}")
    return decoded.value


def _without_mark(data: bytes, path: Path, line: int | None, problems: _Problems) -> bytes:
    if data.startswith(b"\xef\xbb\xbf"):
        problems.add(path, line, "begins with a byte order mark; UTF-8 without one")
        return data[3:]
    return data


def _read_records(path: Path, problems: _Problems, notes: list[str]) -> list[Record]:
    file = _open(path, problems)
    if file is None:
        return []
    found = _Records(path, problems)
    try:
        with file:
            for number, line in _lines(file):
                found.take(number, line)
    except _NotText as error:
        problems.add(path, None, str(error))
    except OSError as error:
        problems.add(path, None, f"cannot be read further: {error.strerror}")
    if not found.records:
        problems.add(path, None, "holds no valid record: nothing measured")
    if found.unknown:
        names = _few(found.unknown)
        notes.append(f"{path}: ignored fields this version does not know: {names}")
    return found.records


class _NotText(Exception):
    """The file is in another encoding, so that no line of it means anything."""


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """(number, line); None for a line longer than MAX_LINE, which is passed over in pieces."""
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if number == 1 and (line[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in line[:4]):
            raise _NotText("is not valid UTF-8 (it looks like UTF-16 or binary); JSON in UTF-8")
        if len(line) <= MAX_LINE:
            yield number, line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE)
        yield number, None


class _Records:
    """The valid records of one file, each key once, every case stated alike."""

    def __init__(self, path: Path, problems: _Problems) -> None:
        self.records: list[Record] = []
        self.unknown: dict[str, None] = {}
        self._path, self._problems = path, problems
        self._keys: dict[tuple[str, int, int], int] = {}
        self._cases: dict[str, tuple[Record, int]] = {}

    def take(self, number: int, line: bytes | None) -> None:
        if line is None:
            self._refuse(number, f"is longer than {MAX_LINE} bytes; a record is about 2,000")
            return
        if number == 1:
            line = _without_mark(line, self._path, number, self._problems)
        if not line.strip():
            self._refuse(number, "is empty; one JSON object")
            return
        decoded = decode(line, Record)
        self.unknown.update(dict.fromkeys(decoded.unknown))
        for flaw in decoded.flaws:
            self._refuse(number, str(flaw))
        if decoded.value is not None:
            self._keep(number, decoded.value)

    def _keep(self, number: int, record: Record) -> None:
        key = (record.case, record.process, record.position)
        if key in self._keys:
            self._refuse(
                number,
                f"case {record.case}, process {record.process}, position {record.position} "
                f"is already on line {self._keys[key]}; each once",
            )
            return
        first, line = self._cases.setdefault(record.case, (record, number))
        for name in _STATED:
            if getattr(record, name) != getattr(first, name):
                wrong = f"{name}: is {getattr(record, name)!r} for case {record.case}"
                self._refuse(number, f"{wrong}; {getattr(first, name)!r} as on line {line}")
                return
        self._keys[key] = number
        self.records.append(record)

    def _refuse(self, number: int, message: str) -> None:
        self._problems.add(self._path, number, message)


def _few(names: Iterable[str]) -> str:
    names = sorted(printable(name)[:40] for name in names)
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
