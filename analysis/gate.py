"""Which runs a gate holds a change to: those named, else the newest clean run of this device.

The verdicts are those of `compare`; a device other than the baseline's is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from ..results.reading import Run, find_runs, read_run
from ..results.record import Device, Environment
from .identity import (
    condition_differences,
    device_differences,
    environments,
    platform_differences,
)
from .sides import same_run


class NoBaseline(Exception):
    """No run may serve as baseline; the message says which devices have one."""

    exit_code = 3


def baseline(current: Sequence[Run], store: Path) -> Run:
    """The newest clean run under `store` of the device that `current` was measured on.

    Clean is finished, of committed code, undamaged, and with something measured in it. One that is
    no later than `current`, with its driver and platform, goes before any other: against those
    nothing could be concluded. A copy of `current` is none. Raises NoBaseline where there is none,
    and StoreError where `store` holds no run at all.
    """
    now = next((run.environment for run in current if run.environment), None)
    if now is None:
        raise NoBaseline(
            "the device of the current run is unknown: its environment.json is damaged"
        )
    others: dict[str, None] = {}
    second: Run | None = None
    for path in reversed(find_runs([store])):
        run = read_run(path)
        if run.environment is None or any(same_run(run, own) for own in current):
            continue
        device = run.environment.device
        differences = device_differences(device, now.device)
        if differences:
            why = f" ({'; '.join(differences)})" if device.name == now.device.name else ""
            others.setdefault(device.name + why)
        elif _clean(run):
            if not (_later(run.environment, now) or _other_conditions(run, current)):
                return run
            second = second or run
    if second is not None:
        return second
    raise NoBaseline(_none_for(now.device, list(others), store))


def _later(base: Environment, current: Environment) -> bool:
    begun, now = (datetime.fromisoformat(run.started_at) for run in (base, current))
    return begun > now


def _other_conditions(base: Run, current: Sequence[Run]) -> bool:
    """Whether driver, clocks or platform are others, so that a comparison concludes nothing."""
    known = environments([base])[0]
    return bool(platform_differences([base, *current])) or any(
        condition_differences(known, now) for now in environments(current)
    )


def _clean(run: Run) -> bool:
    environment = run.environment
    return (
        environment is not None
        and environment.finished_at is not None
        and environment.dirty is False
        and not run.problems
        and any(record.status == "ok" for record in run.records)
    )


def _none_for(device: Device, others: Sequence[str], store: Path) -> str:
    have = f"; there are runs of {', '.join(sorted(others))}" if others else ""
    return (
        f"no clean run of {device.name} in {store} to compare with{have}; commit a finished run "
        "of unchanged code to make it one"
    )
