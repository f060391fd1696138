"""Which runs a gate holds a change to: those named, else the newest clean run of this device.

The verdicts are those of `compare`; a device other than the baseline's is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..results.reading import Run, find_runs, read_run
from ..results.record import Device
from .identity import device_differences


class NoBaseline(Exception):
    """No run may serve as baseline; the message says which devices have one."""

    exit_code = 3


def baseline(current: Sequence[Run], store: Path) -> Run:
    """The newest clean run under `store` of the device that `current` was measured on.

    Clean is finished, of committed code, undamaged, and with something measured in it. Raises
    NoBaseline where there is none, and StoreError where `store` holds no run at all.
    """
    device = next((run.environment.device for run in current if run.environment), None)
    if device is None:
        raise NoBaseline(
            "the device of the current run is unknown: its environment.json is damaged"
        )
    own = {run.path.resolve() for run in current}
    others: dict[str, None] = {}
    for path in reversed(find_runs([store])):
        if path.resolve() in own:
            continue
        run = read_run(path)
        if run.environment is None:
            continue
        if device_differences(run.environment.device, device):
            others.setdefault(run.environment.device.name)
        elif _clean(run):
            return run
    raise NoBaseline(_none_for(device, list(others), store))


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
