"""Whether two runs are of the same device, by what does not change from day to day."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from ..results.reading import Run
from ..results.record import Device, Environment, Peak

_MEMORY_SLACK = 0.02
"""Reported memory moves this much with kernels, firmware and ECC."""
_WATTS_SLACK = 1.0
_CLOCK_SLACK = 0.005
"""Overclocked memory, or a driver that reports another bus, differs by more."""
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


def condition_differences(base: Environment, current: Environment) -> list[str]:
    """What differs in how one device was driven, so that its times are not those of the code."""
    ours, theirs = base.device, current.device
    found = []
    drivers = driver_major(ours), driver_major(theirs)
    if None not in drivers and drivers[0] != drivers[1]:
        found.append(f"driver: {ours.driver} and {theirs.driver}")
    if None not in (ours.ecc, theirs.ecc) and ours.ecc != theirs.ecc:
        found.append(f"ECC: {_on(ours.ecc)} and {_on(theirs.ecc)}")
    clock, other = _by_attributes(base), _by_attributes(current)
    if clock and other and abs(clock.gbps / other.gbps - 1) > _CLOCK_SLACK:
        found.append(f"memory clock and bus: {clock.provenance} and {other.provenance}")
    governors = base.host.get("governor"), current.host.get("governor")
    known = ours.kind == theirs.kind == "cpu" and None not in governors
    if known and governors[0] != governors[1]:
        found.append(f"governor: {governors[0]} and {governors[1]}")
    return found


def all_differences(
    environments: Sequence[Environment],
    differences: Callable[[Environment, Environment], list[str]],
) -> list[str]:
    """What `differences` says of any two of them, each line once."""
    pairs = combinations(environments, 2)
    return list(dict.fromkeys(line for pair in pairs for line in differences(*pair)))


def _by_attributes(environment: Environment) -> Peak | None:
    known = (peak for peak in environment.peak_candidates if peak.source == "attributes")
    return next(known, None)


def _on(ecc: bool | None) -> str:
    return "on" if ecc else "off"


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
