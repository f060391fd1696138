"""A run's samples as pytest-benchmark takes them: a scripted clock, and what stands beside it.

Nothing is timed inside pytest: the clock gives back what fresh worker processes measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..analysis.export_pytest import Replay
from ..analysis.export_pytest import replays as replays_of
from ..analysis.identity import device_differences
from ..results.reading import read_run
from ..results.record import Device
from ..results.store import StoreError
from .device.select import Selected

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


def replays(folder: Path) -> dict[str, Replay]:
    """Every case of the run by its name. Raises StoreError for a file that is damaged."""
    run = read_run(folder)
    if run.problems:
        raise StoreError(str(run.problems[0]))
    return replays_of(run)


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
