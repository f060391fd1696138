"""Achieved bandwidth of every case: GB/s, percent of the peak and of the ceiling, and a verdict.

    python -m membound.analysis.bandwidth RUN…

GB/s are 1e9 bytes per second: traffic / median of process medians. Below a table whose figures are
corrected for drift it says so; `bandwidth(frame)` is of times as measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from .cases import Case, cases
from .ceiling import Ceiling, ceiling_at, ceilings, is_copy
from .verdict import RANKED, Verdict, bound, sound


@dataclass(frozen=True)
class Achieved:
    """One row of the bandwidth table; None is unknown and shown as a dash.

    low and high: 95 % interval over processes, None below three of them.
    percent_of_peak, percent_of_ceiling: None where the case is not one of DRAM.
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
    bytes_read: int
    bytes_written: int
    traffic_bytes: int
    flops: int | None
    processes: int
    median_seconds: float | None
    low_seconds: float | None
    high_seconds: float | None
    spread: float | None
    gb_per_s: float | None
    low_gb_per_s: float | None
    high_gb_per_s: float | None
    peak_gb_per_s: float | None
    percent_of_peak: float | None
    ceiling_gb_per_s: float | None
    percent_of_ceiling: float | None
    write_residue: float | None
    dram_sized: bool | None
    allocates: bool | None
    in_place: bool | None
    ranked: bool
    verdict: str
    why: str

    @property
    def is_step(self) -> bool:
        """Whether it is a step of a kernel ladder that leads to the default form."""
        return self.ladder_step is not None and self.variant != ""

    @property
    def form(self) -> str:
        """Implementation and variant as they are typed: `cuda:unfused`."""
        return f"{self.implementation}:{self.variant}" if self.variant else self.implementation


def bandwidth(frame: pd.DataFrame) -> pd.DataFrame:
    """The tidy table as one row per run and case, columns as in `Achieved`.

    Times as they stand in the table: `drift.corrected` first takes out the drift.
    """
    rows = [asdict(row) for row in achieved(cases(frame))]
    return pd.DataFrame(rows, columns=list(Achieved.__dataclass_fields__))


def achieved(found: Sequence[Case]) -> list[Achieved]:
    """Every case with its bandwidth, held to the ceilings of its own run and cache state."""
    points = run_ceilings(found)
    return [_achieved(case, points.get((case.run, case.cache), [])) for case in found]


def run_ceilings(found: Sequence[Case]) -> dict[tuple[str, str], list[Ceiling]]:
    """The measured ceilings by (run, cache state); a copy that is not believed sets none."""
    believed: dict[tuple[str, str], list[Case]] = {}
    for case in found:
        if is_copy(case) and _from_memory(sound(case)):
            believed.setdefault((case.run, case.cache), []).append(case)
    return {key: ceilings(some) for key, some in believed.items()}


def _from_memory(doubt: Verdict | None) -> bool:
    """Whether the bytes came from memory, steadily or not."""
    return doubt is None or doubt.name in ("throttled", "unstable")


def _achieved(case: Case, points: Sequence[Ceiling]) -> Achieved:
    time, doubt = case.time, sound(case)
    rate = _rate(case, time.value if time else None)
    ceiling = None if case.read_share is None else ceiling_at(points, case.read_share)
    judged = rate if _from_memory(doubt) else None
    of_peak = judged / case.peak_gb_per_s if judged and case.peak_gb_per_s else None
    of_ceiling = judged / ceiling if judged and ceiling else None
    verdict = doubt or bound(of_ceiling, of_peak)
    if verdict.name == "above-ceiling":
        of_ceiling = None
    return Achieved(
        **{name: getattr(case, name) for name in _SAME},
        traffic_bytes=case.traffic,
        processes=len(case.medians),
        median_seconds=time.value if time else None,
        low_seconds=time.low if time else None,
        high_seconds=time.high if time else None,
        spread=time.spread if time else None,
        gb_per_s=rate,
        low_gb_per_s=_rate(case, time.high if time else None),
        high_gb_per_s=_rate(case, time.low if time else None),
        percent_of_peak=None if of_peak is None else 100 * of_peak,
        ceiling_gb_per_s=ceiling,
        percent_of_ceiling=None if of_ceiling is None else 100 * of_ceiling,
        ranked=verdict.name in RANKED,
        verdict=verdict.name,
        why=verdict.why
        if case.status != "ok" or not case.reason
        else f"{verdict.why}; {case.reason}",
    )


def _rate(case: Case, seconds: float | None) -> float | None:
    return case.traffic / seconds / 1e9 if seconds and case.traffic else None


_SAME = (
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
    "flops",
    "peak_gb_per_s",
    "write_residue",
    "dram_sized",
    "allocates",
    "in_place",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the bandwidth table of the runs named; 1 where a file is damaged."""
    from .drift import corrected, drifts
    from .script import run_script
    from .tables import Table, bandwidth_tables

    def tables(_: object, frame: pd.DataFrame) -> list[Table]:
        found = drifts(frame)
        return bandwidth_tables(achieved(cases(corrected(frame, found))), found)

    return run_script(__doc__, arguments, tables)


if __name__ == "__main__":
    raise SystemExit(main())
