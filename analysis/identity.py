"""Whether two runs are of the same device, by what does not change from day to day."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..results.reading import Run
from ..results.record import Device, Environment

_MEMORY_SLACK = 0.02
"""Reported memory moves this much with kernels, firmware and ECC."""
_WATTS_SLACK = 1.0
_USUAL = ("", "nothing", "power cap")
"""What may hold clocks back without a fault: the power cap is part of the device."""


def device_differences(base: Device, current: Device) -> list[str]:
    """The identifying fields in which two devices differ, one line each; empty for the same model.

    Index, UUID and bus address say which card it is, not which model, and are left out.
    """
    found = []
    for field in ("kind", "name", "mig", "capability", "multiprocessors"):
        ours, theirs = getattr(base, field), getattr(current, field)
        # An unknown field is no difference, except that a slice is never the whole card.
        if ours != theirs and (field == "mig" or None not in (ours, theirs)):
            found.append(f"{field}: {_shown(ours)} and {_shown(theirs)}")
    for field, slack in (("memory_bytes", None), ("power_limit_watts", _WATTS_SLACK)):
        ours, theirs = getattr(base, field), getattr(current, field)
        if None in (ours, theirs):
            continue
        if abs(ours - theirs) > (slack or _MEMORY_SLACK * max(ours, theirs)):
            found.append(f"{field}: {ours:,} and {theirs:,}")
    return found


def driver_major(device: Device) -> str | None:
    """The part of the driver version that changes code: "580" of 580.95.05."""
    found = re.match(r"\d+", device.driver or "")
    return found[0] if found else None


def driver_differences(base: Device, current: Device) -> list[str]:
    ours, theirs = driver_major(base), driver_major(current)
    if None in (ours, theirs) or ours == theirs:
        return []
    return [f"driver: {base.driver} and {current.driver}"]


def environments(runs: Sequence[Run]) -> list[Environment]:
    return [run.environment for run in runs if run.environment is not None]


def platform_differences(runs: Sequence[Run]) -> list[str]:
    """WSL against Linux itself: Windows' driver batches launches, and shares the GPU."""
    known = {environment.host.get("wsl") for environment in environments(runs)}
    return ["platform: WSL and Linux"] if {"yes", "no"} <= known else []


def disturbances(runs: Sequence[Run]) -> list[str]:
    """What `disturbed` says of every run, with its path."""
    return [
        f"{run.path}: {line}"
        for run in runs
        if run.environment
        for line in disturbed(run.environment)
    ]


def disturbed(environment: Environment) -> list[str]:
    """What else ran on the device while it was measured, and what held its clocks back."""
    found = []
    for when, others, state in (
        ("before", environment.processes_before, environment.before),
        ("after", environment.processes_after, environment.after),
    ):
        if others:
            found.append(f"other compute processes {when} the run: {', '.join(others)}")
        slowed = [why for why in _slowed(state) if why not in _USUAL]
        if slowed:
            found.append(f"clocks {when} the run held back: {', '.join(slowed)}")
    return found


def _slowed(state: Mapping[str, str | float]) -> list[str]:
    return str(state.get("clocks_slowed_by", "")).split(", ")


def _shown(value: object) -> str:
    return "none" if value is None else str(value)
