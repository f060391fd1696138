"""What supervisor and worker say to each other: one JSON plan in, one JSON event a line out."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..results.record import Cache, Placement, Record, Timer

Choice = dict[str, int | float | str | bool]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One group of cases, in the order its implementations are walked.

    positions: place of each implementation in the process's walk, the same after a restart.
    skips: implementation -> why it is not run.
    """

    operation: str
    direction: Literal["forward", "backward"]
    dtype: str
    dims: dict[str, int]
    caches: list[Cache]
    implementations: list[str]
    positions: list[int]
    skips: dict[str, str]
    memcpy_position: int  # of the reference copy that follows the group
    placement: Placement = "device"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker measures on; it finds operations itself in the same folders."""

    kind: Literal["cuda", "cpu"]
    ordinal: int
    target: dict[str, int | str]
    default_mhz: int | None  # the GPU's default clock, None where it is unknown
    budget_bytes: int
    seed: int
    timer: Timer
    kernels: list[str]  # extra folders of operations
    host_budget_bytes: int | None = None  # None: memory of host and device is one budget


class Plan(Setting, frozen=True, kw_only=True):
    """Everything a worker needs to walk through the cases of a run."""

    process: int
    items: list[Item]
    memcpy: Item  # the reference copy; only its shape and cache states count
    seconds_per_case: float
    deadline: float | None  # time.monotonic() of this machine after which cases are skipped
    choices: dict[str, Choice]  # case stem -> configuration chosen earlier in the run
    done: list[tuple[str, int]]  # (case, position) that have a record


class Missing(msgspec.Struct, frozen=True, tag="missing"):
    """What could not be brought about on the device before anything was measured, and why."""

    what: str
    why: str


class Started(msgspec.Struct, frozen=True, tag="started"):
    """These cases are being worked on: they are lost if the worker is."""

    cases: list[str]
    position: int


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    record: Record


class Poisoned(msgspec.Struct, frozen=True, tag="poisoned"):
    """The CUDA context is unusable; only a fresh process can go on."""

    reason: str


Event = Missing | Started | Finished | Poisoned
