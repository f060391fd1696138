"""Whether an interrupted run may be completed: with its own cases, its own code and driver.

What is measured after any of these changed would stand in one run, and under one commit, beside
what was measured before.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from ..results.reading import Run
from ..results.record import Device, Environment, Timer
from .cases import Group
from .device.identity import device_folder
from .environment import Revision, changed_since
from .records import MEMCPY


class CannotResume(ValueError):
    """A run that cannot be completed here; the message says what differs."""

    exit_code = 2


def planned_cases(groups: Sequence[Group]) -> set[str]:
    return {g.case(label, c) for g in groups for label in g.implementations for c in g.caches}


def plan_hash(groups: Sequence[Group], timer: Timer) -> str:
    """Sixteen hexadecimal digits for what a run sets out to measure."""
    text = "\n".join([timer, *sorted(planned_cases(groups))])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_device(folder: Path, known: Run, device: Device) -> Environment:
    """The run's environment. Raises CannotResume where it is damaged or the device another one."""
    environment = known.environment
    if environment is None:
        raise CannotResume(f"{folder}: environment.json is missing or damaged")
    then = environment.device
    if device_folder(device) != device_folder(then):
        raise CannotResume(f"{folder} was measured on {then.name}; this is {device.name}")
    if None not in (then.driver, device.driver) and then.driver != device.driver:
        raise CannotResume(
            f"{folder} was measured with driver {then.driver}; this is {device.driver}: "
            "start a new run"
        )
    return environment


def check_code(folder: Path, environment: Environment, now: Revision) -> None:
    """Raises CannotResume where what decides a number has changed since, as far as is known."""
    if environment.commit is None or now.commit is None:
        return
    remedy = "start a new run"
    if environment.dirty is False and now.dirty:
        raise CannotResume(f"{folder} is of unchanged code; this has changes: {remedy}")
    if environment.commit != now.commit and changed_since(environment.commit):
        was, here = environment.commit[:12], now.commit[:12]
        raise CannotResume(f"{folder} is of commit {was}; this is {here}, other code: {remedy}")


def check_cases(folder: Path, known: Run, groups: Sequence[Group], timer: Timer) -> None:
    """Raises CannotResume where these options do not select the cases of the run."""
    environment = known.environment
    command = shlex.join(environment.command if environment else [])
    planned = planned_cases(groups)
    for record in known.records:
        if record.implementation != MEMCPY and record.case not in planned:
            raise CannotResume(
                f"{folder} holds {record.case}, which these options do not select; it is of: "
                f"{command}"
            )
    if environment and environment.plan not in (None, plan_hash(groups, timer)):
        raise CannotResume(
            f"{folder} set out to measure other cases than these options select, or with another "
            f"timer; it is of: {command}"
        )
