"""A run's samples as pytest-benchmark takes them: a scripted clock, and what stands beside it.

Nothing is timed inside pytest: the clock gives back what fresh worker processes measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import msgspec

from ..analysis.bandwidth import Achieved, achieved
from ..analysis.cases import cases
from ..analysis.identity import device_differences
from ..analysis.loading import frame
from ..results.reading import read_run
from ..results.record import Device, Record, Status
from ..results.store import StoreError
from .device.select import Selected
from .records import MEMCPY

_WORST: tuple[Status, ...] = ("wrong", "failed", "timeout")
_STATED = (
    "operation", "family", "direction", "implementation", "variant", "dtype", "cache",
    "bytes_read", "bytes_written", "source_hash",
)  # fmt: skip
_JUDGED = (
    "shape", "processes", "gb_per_s", "verdict", "why",
)  # fmt: skip
_PERCENT = ("percent_of_peak", "percent_of_ceiling")
_VOLATILE = ("hz_actual", "hz_actual_friendly")


class ScriptedClock:
    """Readings whose differences, pair by pair, are the samples to the last bit."""

    def __init__(self) -> None:
        self.__name__ = "nothing_measured"
        self._readings: Iterator[float] = iter(())

    def load(self, timer: str, samples: Iterable[float]) -> None:
        """`timer` is the name under which pytest-benchmark files the samples (seconds)."""
        self.__name__ = timer
        self._readings = (reading for sample in samples for reading in (0.0, sample))

    def __call__(self) -> float:
        return next(self._readings)


@dataclass(frozen=True)
class Replay:
    """One case of a run. `samples` (seconds, process by process) is empty unless status is ok."""

    status: Status
    reason: str
    timer: str
    samples: list[float]
    extra_info: dict[str, int | float | str]


def replays(folder: Path) -> dict[str, Replay]:
    """Every case of the run by its name. Raises StoreError for a file that is damaged."""
    run = read_run(folder)
    if run.problems:
        raise StoreError(str(run.problems[0]))
    device = run.environment.device.name if run.environment else "unknown"
    judged = {row.case: row for row in achieved(cases(frame([run])))}
    found: dict[str, list[Record]] = {}
    for record in run.records:
        if record.implementation != MEMCPY:
            found.setdefault(record.case, []).append(record)
    return {case: _replay(records, judged[case], device) for case, records in found.items()}


def machine(selected: Selected, stock: dict[str, Any]) -> dict[str, Any]:
    """pytest-benchmark's machine_info with the device that is measured, and its peak in GB/s.

    The clock of the moment is left out: pytest-benchmark compares machines field by field.
    """
    cpu = {key: value for key, value in stock.get("cpu", {}).items() if key not in _VOLATILE}
    device, peak = msgspec.to_builtins(selected.device), msgspec.to_builtins(selected.peak)
    return {**stock, "cpu": cpu, "device": device, "peak": peak}


def other_device(saved: object, selected: Selected) -> list[str]:
    """How the device of a saved machine_info differs from this one; empty if it names none."""
    try:
        device = msgspec.convert(saved.get("device"), Device) if isinstance(saved, dict) else None
    except msgspec.ValidationError:
        return []
    return device_differences(device, selected.device) if device else []


def _replay(records: Sequence[Record], judged: Achieved, device: str) -> Replay:
    """One process in which a case went wrong spoils it; one that skipped it does not."""
    measured = [record for record in records if record.status == "ok"]
    for status in _WORST:
        bad = [record for record in records if record.status == status]
        if bad:
            return Replay(status, bad[0].reason or "no reason was recorded", "", [], {})
    if not measured:
        return Replay("skipped", records[0].reason or "no reason was recorded", "", [], {})
    first = measured[0]
    stated = {name: getattr(first, name) for name in _STATED}
    row = asdict(judged)
    known = {name: row[name] for name in _JUDGED}
    # Beyond 100 % it is the cache, the noise or the peak that is seen: no achievement to file.
    known |= {name: row[name] for name in _PERCENT if (row[name] or 0.0) <= 100}
    info = {
        "case": first.case,
        "status": "ok",
        "timer": first.timer,
        "device": device,
        **stated,
        **known,
        "seconds": judged.median_seconds,
    }
    return Replay(
        status="ok",
        reason="",
        timer=first.timer or "unknown",
        samples=[sample for record in measured for sample in record.seconds],
        extra_info={name: _plain(value) for name, value in info.items() if value is not None},
    )


def _plain(value: object) -> int | float | str:
    """pytest-benchmark files numpy's numbers as text."""
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else str(value)
