"""The bandwidth an operation could have reached here: the copies of the same run.

A memory does not read and write equally fast, so an operation is held to the copy-family kernel
with its own read share, whichever implementation ran that one fastest. Between two measured
shares the time per byte is interpolated linearly: a kernel could always run as the one mix for
some of its bytes and as the other for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from .cases import Case

_NEAR = 0.02
"""An operation this far outside the measured shares is still held to the outermost one."""


@dataclass(frozen=True)
class Ceiling:
    """The fastest copy of one read share (bytes read / all bytes)."""

    share: float
    gb_per_s: float
    case: str


def is_copy(case: Case) -> bool:
    """Whether a case is a plain stream, one of those that set the ceilings."""
    return case.operation in (
        "copy",
        "scale",
        "add",
        "triad",
        "fill",
        "read",
    ) or case.operation.startswith("mix_")


def ceilings(cases: Iterable[Case]) -> list[Ceiling]:
    """The best DRAM-sized copy at each read share, by share; `cases` of one run and cache state.

    Cases whose figures are not to be believed must have been left out.
    """
    best: dict[float, Ceiling] = {}
    for case in cases:
        if not (is_copy(case) and case.dram_sized and case.medians and case.read_share is not None):
            continue
        share = round(case.read_share, 3)
        rate = case.traffic / median(case.medians.values()) / 1e9
        if share not in best or rate > best[share].gb_per_s:
            best[share] = Ceiling(share, rate, case.case)
    return [best[share] for share in sorted(best)]


def ceiling_at(points: Sequence[Ceiling], share: float) -> float | None:
    """GB/s of the ceiling at a read share; None where no copy was measured near it."""
    for point in points:
        if abs(point.share - share) < 0.0006:  # shares are kept to three digits
            return point.gb_per_s
    below = [point for point in points if point.share < share]
    above = [point for point in points if point.share > share]
    if below and above:
        low, high = below[-1], above[0]
        weight = (share - low.share) / (high.share - low.share)
        return 1 / ((1 - weight) / low.gb_per_s + weight / high.gb_per_s)
    nearest = below[-1] if below else above[0] if above else None
    return nearest.gb_per_s if nearest and abs(nearest.share - share) <= _NEAR else None
