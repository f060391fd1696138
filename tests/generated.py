"""Records and runs made up for tests. Nothing here was measured."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from membound.results.record import SCHEMA, Device, Environment, Peak, Record
from membound.results.store import RunWriter, create_run

MIB = 1 << 20


def record(**changes: Any) -> Record:
    """A valid record of a copy of 2 x 512 MiB taking 1 ms; `case` follows from the fields."""
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "operation": "copy",
        "family": "copy",
        "direction": "forward",
        "implementation": "cuda",
        "variant": "",
        "dtype": "float32",
        "shape": {"rows": 8192, "columns": 16384},
        "cache": "cold",
        "process": 0,
        "position": 0,
        "status": "ok",
        "bytes_read": 512 * MIB,
        "bytes_written": 512 * MIB,
        "timer": "events",
        "seconds": [0.001, 0.001, 0.001],
        "stop": "interval",
        "source_hash": "generated",
        "started_at": "2026-01-02T03:04:05Z",
    } | changes
    if fields["status"] != "ok":
        fields = fields | {
            "seconds": changes.get("seconds", []),
            "reason": fields.get("reason", "made up"),
        }
    form = fields["implementation"] + (f":{fields['variant']}" if fields["variant"] else "")
    shape = "x".join(map(str, fields["shape"].values()))
    placement = fields.get("placement", "device")
    parts = (
        fields["operation"],
        fields["direction"],
        form,
        fields["dtype"],
        shape,
        *([] if placement == "device" else [placement]),
        fields["cache"],
    )
    fields.setdefault("case", "/".join(map(str, parts)))
    return Record(**fields)


def processes(medians: Sequence[float], **changes: Any) -> list[Record]:
    """One record per process with these median seconds."""
    return [record(process=i, seconds=[s] * 3, **changes) for i, s in enumerate(medians)]


def device(**changes: Any) -> Device:
    fields: dict[str, Any] = {
        "kind": "cuda",
        "name": "NVIDIA Generated",
        "memory_bytes": 80 << 30,
        "capability": "9.0",
        "power_limit_watts": 700.0,
        "multiprocessors": 132,
        "l2_bytes": 25 * MIB,
        "llc_bytes": 25 * MIB,
        "driver": "580.95.05",
    }
    return Device(**(fields | changes))


def environment(**changes: Any) -> Environment:
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "run": "20260102T030405Z-0123abc",
        "started_at": "2026-01-02T03:04:05Z",
        "device": device(),
        "peak": Peak(gbps=2000.0, source="sheet", provenance="generated"),
        "memory_budget_bytes": 40 << 30,
        "commit": "0123abc" + "0" * 33,
        "dirty": False,
        "command": ["membound", "run"],
        "preset": "quick",
        "seed": 0,
        "processes": 3,
        "cache_states": ["cold"],
    }
    return Environment(**(fields | changes))


def run(
    folder: Path, records: Sequence[Record], env: Environment | None = None, minute: int = 0
) -> Path:
    """Write a run below `folder` and return its path."""
    path = create_run(folder, datetime(2026, 1, 2, 3, minute, tzinfo=UTC), "0123abc" + "0" * 33)
    with RunWriter(path) as writer:
        writer.write_environment(env or environment())
        for entry in records:
            writer.append(entry)
    return path
