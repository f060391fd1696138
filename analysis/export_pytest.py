"""A run as pytest-benchmark files it: what `pytest bench --benchmark-json` would have written.

    membound export RUN --format pytest-benchmark -o run.json

Samples are as measured, never corrected for drift. `ops`, which tools plot, is one over the median
of process medians: the estimator that `compare` and `gate` judge. A case that is not ok leaves no
number: it is left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from statistics import mean, median, stdev
from typing import Any

import msgspec

from ..results.reading import Run
from ..results.record import Environment, Record, Status
from .bandwidth import Achieved, achieved
from .cases import cases
from .drift import REFERENCE
from .loading import frame

LAYOUT = "5.3.1"
"""Version of pytest-benchmark whose file this is."""

_TEST = "test_bandwidth"
_FILE = "bench/test_bench.py"
_WORST: tuple[Status, ...] = ("wrong", "failed", "timeout")
_STATED = (
    "operation", "family", "direction", "implementation", "variant", "dtype", "cache",
    "placement",
    "bytes_read", "bytes_written", "source_hash",
)  # fmt: skip
_JUDGED = ("shape", "processes", "gb_per_s", "verdict", "why")
_PERCENT = ("percent_of_peak", "percent_of_ceiling")


class NothingMeasured(Exception):
    """A run without one case that is ok; the message says how its cases ended."""

    exit_code = 4


@dataclass(frozen=True)
class Replay:
    """One case of a run. `samples` (seconds, process by process) is empty unless status is ok."""

    status: Status
    reason: str
    timer: str
    samples: list[float]
    extra_info: dict[str, int | float | str]


def replays(run: Run) -> dict[str, Replay]:
    """Every case of the run by its name, in the order of its first record."""
    device = run.environment.device.name if run.environment else "unknown"
    judged = {row.case: row for row in achieved(cases(frame([run])))}
    found: dict[str, list[Record]] = {}
    for record in run.records:
        if record.implementation != REFERENCE:
            found.setdefault(record.case, []).append(record)
    return {case: _replay(records, judged[case], device) for case, records in found.items()}


def document(run: Run) -> tuple[dict[str, Any], Counter[str]]:
    """The file's content, and how many cases were left out, by status.

    Raises NothingMeasured where no case is ok.
    """
    found = replays(run)
    left_out = Counter(str(replay.status) for replay in found.values() if replay.status != "ok")
    benchmarks = [_benchmark(case, r) for case, r in found.items() if r.status == "ok"]
    if not benchmarks:
        raise NothingMeasured(f"{run.path}: nothing was measured, {counted(left_out)}")
    environment = run.environment
    content = {
        "machine_info": _machine(environment) if environment else {},
        "commit_info": _commit(environment),
        "benchmarks": benchmarks,
        "datetime": max(record.started_at for record in run.records),
        "version": LAYOUT,
    }
    return content, left_out


def counted(left_out: Mapping[str, int]) -> str:
    """`2 failed, 1 skipped`"""
    return ", ".join(f"{count} {status}" for status, count in left_out.items()) or "it has no case"


def _replay(records: Sequence[Record], judged: Achieved, device: str) -> Replay:
    """One process in which a case went wrong spoils it; one that skipped it does not."""
    measured = [record for record in records if record.status == "ok" and record.seconds]
    for status in _WORST:
        bad = [record for record in records if record.status == status]
        if bad:
            return Replay(status, bad[0].reason or "no reason was recorded", "", [], {})
    if not measured:
        return Replay("skipped", records[0].reason or "no reason was recorded", "", [], {})
    first = measured[0]
    stated = {name: getattr(first, name) for name in _STATED}
    row = asdict(judged)
    known = {name: row[name] for name in _JUDGED}
    # Beyond 100 % it is the cache, the noise or the peak that is seen: no achievement to file.
    known |= {name: row[name] for name in _PERCENT if (row[name] or 0.0) <= 100}
    info = {
        "case": first.case,
        "status": "ok",
        "timer": first.timer,
        "device": device,
        **stated,
        **known,
        "seconds": judged.median_seconds,
    }
    return Replay(
        status="ok",
        reason="",
        timer=first.timer or "unknown",
        samples=[sample for record in measured for sample in record.seconds],
        extra_info={name: _plain(value) for name, value in info.items() if value is not None},
    )


def _plain(value: object) -> int | float | str:
    """pytest-benchmark files numpy's numbers as text."""
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else str(value)


def _benchmark(case: str, replay: Replay) -> dict[str, Any]:
    info = replay.extra_info
    name = f"{_TEST}[{case}]"
    return {
        "group": f"{info['operation']}/{info['direction']}",
        "name": name,
        "fullname": f"{_FILE}::{name}",
        "params": {"case": case},
        "param": case,
        "extra_info": info,
        "options": {"timer": replay.timer},  # the only one that had a part in the samples
        "stats": {**_stats(replay.samples), "ops": 1 / float(info["seconds"])},
    }


def _stats(samples: Sequence[float]) -> dict[str, Any]:
    """pytest-benchmark's fields by its definitions; fences lie 1.5 interquartile ranges out."""
    ordered = sorted(samples)
    q1, q3 = _quartiles(ordered)
    low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    average, deviation = mean(samples), stdev(samples) if len(samples) > 1 else 0.0
    beyond = sum(abs(sample - average) > deviation for sample in samples)
    inside = [sample for sample in ordered if low <= sample <= high]
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": average,
        "stddev": deviation,
        "rounds": len(samples),
        "median": median(ordered),
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": len(samples) - len(inside),
        "stddev_outliers": beyond,
        "outliers": f"{beyond};{len(samples) - len(inside)}",
        "ld15iqr": inside[0],
        "hd15iqr": inside[-1],
        "total": sum(samples),
        "data": list(samples),
        "iterations": 1,
    }


def _quartiles(ordered: Sequence[float]) -> tuple[float, float]:
    """Medians of the halves; of an odd count the mean of doing so with the middle and without."""
    half = len(ordered) // 2
    if half == 0:
        return ordered[0], ordered[0]
    without = median(ordered[:half]), median(ordered[-half:])
    if len(ordered) % 2 == 0:
        return without
    including = median(ordered[: half + 1]), median(ordered[half:])
    return (without[0] + including[0]) / 2, (without[1] + including[1]) / 2


def _machine(environment: Environment) -> dict[str, Any]:
    """What the run knows of pytest-benchmark's machine_info, the device and its peak in GB/s."""
    host, versions = environment.host, environment.versions
    known = {
        "machine": host.get("architecture"),
        "python_version": versions.get("python"),
        "release": host.get("kernel"),
        "cpu": {"brand_raw": host["cpu"]} if "cpu" in host else {},
    }
    return {
        **{name: value for name, value in known.items() if value is not None},
        "device": msgspec.to_builtins(environment.device),
        "peak": msgspec.to_builtins(environment.peak),
    }


def _commit(environment: Environment | None) -> dict[str, Any]:
    """pytest-benchmark's commit_info; a run keeps the commit and whether it was changed."""
    info: dict[str, Any] = {
        "id": (environment.commit if environment else None) or "unknown",
        "time": None,
        "author_time": None,
        "dirty": environment.dirty if environment else None,
        "project": "membound",
        "branch": "(unknown)",
    }
    if environment and environment.commit_reason:
        info["error"] = environment.commit_reason
    return info
