"""Asking a machine about itself, one guarded question at a time.

`Machine` is everything that is ever asked: a real one (`live.Live`) or recorded answers in tests.
Any answer may be an error, and drivers also spell "unknown" as text, as zero or as a sentinel. A
`Probe` turns all of that into a value or None, and keeps the reason in `missing`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ...results.checked import printable

_UNKNOWN_TEXTS = frozenset(
    ("", "n/a", "na", "not supported", "unknown error", "unknown", "err!", "none", "no data")
)
_SENTINELS = frozenset((0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF))  # NVML_VALUE_NOT_AVAILABLE, 32 and 64 bit
_LARGEST = 2**60  # what a record holds
_LONGEST = 200  # characters; CUDA's names have at most 255 bytes


_T = TypeVar("_T")


class QueryError(RuntimeError):
    """A question that the machine refused; the message is its own word for it."""


class Machine(Protocol):
    """Raw answers. Every method may raise any Exception."""

    def cuda(self, query: str, ordinal: int = 0) -> object:
        """CUDA driver: "count", "driver_version", "name", "uuid" (hexadecimal, no prefix),
        "pci_bus_id", "total_memory", "free_memory" (bytes), or a device attribute by the end of
        its name, "MEMORY_CLOCK_RATE"."""

    def nvml(self, query: str, identity: str = "") -> object:
        """NVML: "driver_version" and "uuids" of the machine; of the device that `identity` (a UUID
        or a PCI id) names: the keys of `live.NVML_QUERIES`."""

    def read(self, path: str) -> str:
        """The text of a file."""

    def glob(self, pattern: str) -> list[str]:
        """Existing paths that match."""

    def environ(self, name: str) -> str | None:
        """An environment variable."""

    def affinity(self) -> list[int]:
        """The CPUs this process may run on."""

    def architecture(self) -> str:
        """`uname -m`."""

    def pid(self) -> int:
        """This process."""


def one_line(error: BaseException) -> str:
    """An error as one short line: its message, or its kind where it has none."""
    text = printable(" ".join(str(error).split()))
    if isinstance(error, OSError) and error.strerror:
        text = printable(error.strerror)
    return text[:200] or type(error).__name__


def is_unknown_text(text: str) -> bool:
    """Whether a driver's text means that it does not know: "N/A", "[N/A]", "ERR!", empty, …"""
    return text.strip().strip("[]<>()").strip().lower() in _UNKNOWN_TEXTS


class Probe:
    """Guarded questions to one machine; `missing` maps each unanswered field to its reason."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.missing: dict[str, str] = {}

    def _first(
        self, field: str, calls: Sequence[Callable[[], object]], read: Callable[[object], _T]
    ) -> _T | None:
        reasons: list[str] = []
        for call in calls:
            try:
                return read(call())
            except Exception as error:
                reason = one_line(error)
                if reason not in reasons:
                    reasons.append(reason)
        self.missing[field] = "; ".join(reasons)
        return None

    def text(self, field: str, *calls: Callable[[], object]) -> str | None:
        """The first answer that is a text with a meaning."""
        return self._first(field, calls, _as_text)

    def count(self, field: str, *calls: Callable[[], object], zero: bool = False) -> int | None:
        """The first answer that is a whole number above zero (`zero`: or zero itself)."""
        return self._first(field, calls, lambda value: _as_count(value, zero))

    def flag(self, field: str, *calls: Callable[[], object]) -> bool | None:
        """The first answer that is 0 or 1."""
        value = self.count(field, *calls, zero=True)
        return None if value is None else value != 0

    def paths(self, pattern: str) -> list[str]:
        """Paths that match; none where they cannot be listed."""
        try:
            return self.machine.glob(pattern)
        except Exception:
            return []

    def file(self, path: str) -> str | None:
        """The text of a file, None where it cannot be read; files leave no reason behind."""
        try:
            return self.machine.read(path)
        except Exception:
            return None


def _as_text(value: object) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    if not isinstance(text, str):
        raise QueryError(f"answered {repr(value)[:40]}, not a text")
    text = printable(" ".join(text.replace("\0", " ").split()))[:_LONGEST].strip()
    if is_unknown_text(text):
        raise QueryError(f"answered {text!r}")
    return text


def _as_count(value: object, zero: bool) -> int:
    if isinstance(value, bytes | str):
        text = _as_text(value)
        if not text.isdecimal() or len(text) > 20:
            raise QueryError(f"answered {text[:40]!r}, not a number")
        value = int(text)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if not isinstance(value, int):
        raise QueryError(f"answered {repr(value)[:40]}, not a whole number")
    if value < 0 or value in _SENTINELS or (value == 0 and not zero):
        raise QueryError(f"answered {int(value)}")
    if value > _LARGEST:
        raise QueryError("answered a number too large to be true")
    return int(value)
