"""The tidy table put together: one `Case` per run and case, with its process medians."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

import pandas as pd

from .statistics import Centre, centre

_WORST = ("wrong", "failed", "timeout", "skipped")
BROKEN = ("failed", "timeout")
"""Statuses of a case that crashed or hung."""


@dataclass(frozen=True)
class Case:
    """One case of one run. Unknown is None. Times are seconds.

    status: "ok" where at least one process measured it and none found it wrong.
    reason: why not ok, or how many processes did not measure it.
    failed: records that failed or timed out although others are ok.
    medians: per process the median of its samples (of its positions, where it has several).
    """

    run: str
    case: str
    operation: str
    family: str
    direction: str
    implementation: str
    variant: str
    ladder_step: int | None
    dtype: str
    shape: str
    cache: str
    placement: str
    status: str
    reason: str | None
    failed: int
    medians: Mapping[int, float] = field(repr=False)
    timer: str | None
    tick: float | None
    launch_overhead: float | None
    throttled: bool | None
    bytes_read: int
    bytes_written: int
    schedule_bytes: int | None
    unfused_bytes: int | None
    flops: int | None
    allocates: bool | None
    in_place: bool | None
    llc_bytes: int | None
    write_residue: float | None
    dram_sized: bool | None
    peak_gb_per_s: float | None

    @cached_property
    def time(self) -> Centre | None:
        """The case's time with its interval over processes; None where there is none."""
        if not self.medians:
            return None
        return centre(list(self.medians.values()), self.tick or 0.0)

    @property
    def traffic(self) -> int:
        return self.bytes_read + self.bytes_written

    @property
    def read_share(self) -> float | None:
        return self.bytes_read / self.traffic if self.traffic else None

    @property
    def is_step(self) -> bool:
        """Whether it is a step of a kernel ladder that leads to the default form."""
        return self.ladder_step is not None and self.variant != ""

    @property
    def form(self) -> str:
        """Implementation and variant as they are typed: `cuda:unfused`."""
        return f"{self.implementation}:{self.variant}" if self.variant else self.implementation


def cases(frame: pd.DataFrame) -> list[Case]:
    """Every case of every run in the table, in the order of its first record."""
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records(frame):
        grouped.setdefault((record["run"], record["case"]), []).append(record)
    return [_case(some) for some in grouped.values()]


def records(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The rows of the table by column name; what is missing is None."""
    columns = list(frame.columns)
    values = [frame[name].astype(object).where(frame[name].notna(), None) for name in columns]
    for row in zip(*values, strict=True):
        yield dict(zip(columns, row, strict=True))


def _case(records: list[dict[str, Any]]) -> Case:
    first = records[0]
    bad = [record for record in records if record["status"] != "ok"]
    good = [record for record in records if record["status"] == "ok"]
    worst = min(bad, key=lambda record: _WORST.index(record["status"]), default=None)
    status, reason = "ok", None
    if worst is not None:
        reason = worst["reason"]
        if worst["status"] == "wrong" or not good:
            status, good = worst["status"], []
        else:
            alike = sum(record["status"] == worst["status"] for record in bad)
            reason = f"{alike} of {len(records)} records {worst['status']}: {reason}"
    return Case(
        **{name: first[name] for name in _COPIED},
        status=status,
        reason=reason,
        failed=sum(record["status"] in BROKEN for record in bad) if good else 0,
        medians=_medians(good),
        tick=_largest(record["timer_tick_seconds"] for record in good),
        launch_overhead=_largest(record["launch_overhead_seconds"] for record in good),
        throttled=_any(record["throttled"] for record in good),
        timer=", ".join(sorted({record["timer"] for record in good})) or None,
        dram_sized=None
        if first["dram_sized"] is None
        else all(record["dram_sized"] for record in good or records),
        write_residue=_largest(record["write_residue"] for record in good or records),
        allocates=_any(record["allocates"] for record in good),
        in_place=_any(record["in_place"] for record in good),
    )


_COPIED = (
    "run",
    "case",
    "operation",
    "family",
    "direction",
    "implementation",
    "variant",
    "ladder_step",
    "dtype",
    "shape",
    "cache",
    "placement",
    "bytes_read",
    "bytes_written",
    "schedule_bytes",
    "unfused_bytes",
    "flops",
    "llc_bytes",
    "peak_gb_per_s",
)


def _medians(records: list[dict[str, Any]]) -> dict[int, float]:
    by_process: dict[int, list[float]] = {}
    for record in records:
        by_process.setdefault(record["process"], []).append(record["median_seconds"])
    return {process: median(values) for process, values in sorted(by_process.items())}


def _largest(values: Any) -> float | None:
    return max((v for v in values if v is not None and math.isfinite(v)), default=None)


def _any(values: Any) -> bool | None:
    known = [bool(value) for value in values if value is not None]
    return any(known) if known else None
