"""Runs as one tidy table: one row per case and process, and position where a case is repeated.

GB/s are 1e9 bytes per second: (bytes read + bytes written) / median of the samples. What each
column means is in results/README.md.
"""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from ..results.reading import Run, find_runs, read_run
from ..results.record import Environment, Record
from .statistics import sample_interval

MAX_RESIDUE = 0.05
"""Share of the traffic that may still sit in the cache, written but not yet in memory."""
TIMES_LLC = 4
"""A working set of this many last-level caches does not profit from them."""

COLUMNS = {
    "run": "string",
    "device": "string",
    "device_kind": "string",
    "commit": "string",
    "preset": "string",
    "run_started_at": "string",
    "case": "string",
    "operation": "string",
    "family": "string",
    "direction": "string",
    "implementation": "string",
    "variant": "string",
    "ladder_step": "Int64",
    "dtype": "string",
    "shape": "string",
    "cache": "string",
    "placement": "string",
    "process": "int64",
    "position": "int64",
    "status": "string",
    "reason": "string",
    "bytes_read": "int64",
    "bytes_written": "int64",
    "traffic_bytes": "int64",
    "schedule_bytes": "Int64",
    "unfused_bytes": "Int64",
    "flops": "Int64",
    "read_share": "float64",
    "timer": "string",
    "timer_tick_seconds": "float64",
    "samples": "int64",
    "median_seconds": "float64",
    "low_seconds": "float64",
    "high_seconds": "float64",
    "gb_per_s": "float64",
    "launch_overhead_seconds": "float64",
    "throttled": "boolean",
    "sm_clock_mhz": "float64",
    "stop": "string",
    "footprint_bytes": "Int64",
    "llc_bytes": "Int64",
    "write_residue": "float64",
    "dram_sized": "boolean",
    "peak_gb_per_s": "float64",
    "peak_source": "string",
    "max_error": "float64",
    "tolerance": "float64",
    "allocates": "boolean",
    "in_place": "boolean",
    "choice": "string",
    "source_hash": "string",
    "started_at": "string",
}
"""Every column of the table, in order, with its pandas type."""


def load(*paths: str | Path) -> pd.DataFrame:
    """The table of all runs that `paths` name (run, device or results folders, or globs).

    Warns of each problem in a file; raises StoreError where a path holds no run.
    """
    runs = read(paths)
    for run in runs:
        for problem in run.problems:
            warnings.warn(str(problem), stacklevel=2)
    return frame(runs)


def read(paths: Iterable[str | Path]) -> list[Run]:
    """Every run that `paths` name, oldest first. Raises StoreError where there is none."""
    with _uncollected():
        return [read_run(path) for path in find_runs(paths)]


def frame(runs: Sequence[Run]) -> pd.DataFrame:
    """Tidy table of runs already read; columns and types of COLUMNS, also when empty."""
    labels = _labels(runs)
    with _uncollected():
        rows = [
            row
            for run, label in zip(runs, labels, strict=True)
            for row in _rows(run.records, run.environment, label)
        ]
        columns: list[tuple[Any, ...]] = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    return pd.DataFrame(
        {
            name: pd.Series(list(values), dtype=kind)
            for (name, kind), values in zip(COLUMNS.items(), columns, strict=True)
        }
    )


def residue(record: Record, llc_bytes: int) -> float | None:
    """Share of the traffic whose write-back may fall outside the clock; None without traffic.

    Steady state over a footprint of at least 4 x LLC pays for the write-backs of earlier launches
    instead of its own, so nothing is left over.
    """
    traffic = record.bytes_read + record.bytes_written
    if traffic == 0:
        return None
    if record.cache == "steady" and (record.footprint_bytes or 0) >= TIMES_LLC * llc_bytes:
        return 0.0
    return min(record.bytes_written, llc_bytes) / traffic


def dram_sized(record: Record, llc_bytes: int) -> bool:
    """Whether the time is that of the device's memory, not of its cache or of other memory."""
    if record.placement != "device":
        return False
    left = residue(record, llc_bytes)
    if left is None or left > MAX_RESIDUE:
        return False
    traffic = record.bytes_read + record.bytes_written
    touched = traffic if record.cache == "cold" else record.footprint_bytes or 0
    return touched >= TIMES_LLC * llc_bytes


def middle(ordered: Sequence[float]) -> float:
    """Median of sorted values."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@contextmanager
def _uncollected() -> Iterator[None]:
    """Records hold no cycles, and looking for some took a third of the time of a large run."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _labels(runs: Sequence[Run]) -> list[str]:
    """`<device>/<run>`, or the whole path where that is not unique.

    Bytes of a name that are not UTF-8, which no table can hold, are written as `\\udcff`.
    """
    paths = [run.path.resolve() for run in runs]
    short = ["/".join(path.parts[-2:]) for path in paths]
    labels = [
        label if short.count(label) == 1 else str(path)
        for label, path in zip(short, paths, strict=True)
    ]
    return [label.encode(errors="backslashreplace").decode() for label in labels]


def _rows(
    records: Sequence[Record], environment: Environment | None, label: str
) -> list[tuple[Any, ...]]:
    device = environment.device if environment else None
    llc = device.llc_bytes if device else None
    peak = environment.peak if environment else None
    head = (
        label,
        device.name if device else None,
        device.kind if device else None,
        environment.commit if environment else None,
        environment.preset if environment else None,
        environment.started_at if environment else None,
    )
    tail = (peak.gbps if peak else None, peak.source if peak else None)
    return [_row(record, llc, head, tail) for record in records]


def _shape(record: Record) -> str:
    """As the case spells it, with its settings set apart: `16x64x112x112-k3s2p1`."""
    parts = record.case.split("/")
    return parts[4] if len(parts) in (6, 7) else "x".join(map(str, record.shape.values()))


def _row(
    record: Record, llc: int | None, head: tuple[Any, ...], peak: tuple[Any, ...]
) -> tuple[Any, ...]:
    traffic = record.bytes_read + record.bytes_written
    samples = sorted(record.seconds)
    median = middle(samples) if samples else None
    low, high = sample_interval(samples) or (None, None)
    measured = median is not None and traffic > 0 and record.status == "ok"
    clocks = sorted(record.sm_clock_mhz)
    return (
        *head,
        record.case,
        record.operation,
        record.family,
        record.direction,
        record.implementation,
        record.variant,
        record.ladder_step,
        record.dtype,
        _shape(record),
        record.cache,
        record.placement,
        record.process,
        record.position,
        record.status,
        record.reason,
        record.bytes_read,
        record.bytes_written,
        traffic,
        record.schedule_bytes,
        record.unfused_bytes,
        record.flops,
        record.bytes_read / traffic if traffic else None,
        record.timer,
        record.timer_tick_seconds,
        len(samples),
        median,
        low,
        high,
        traffic / median / 1e9 if measured and median else None,
        record.launch_overhead_seconds,
        record.throttled,
        middle(clocks) if clocks else None,
        record.stop,
        record.footprint_bytes,
        llc,
        None if llc is None else residue(record, llc),
        None if llc is None else dram_sized(record, llc),
        *peak,
        record.max_error,
        record.tolerance,
        record.allocates,
        record.in_place,
        json.dumps(record.choice) if record.choice else None,
        record.source_hash,
        record.started_at,
    )
