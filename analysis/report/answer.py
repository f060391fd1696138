"""The answer of a run in a few lines: how near layers get to the memory, and what fusing buys."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ..bandwidth import Achieved
from ..fusion import Gain, own_chain
from ..tables import number, percent, short
from ..verdict import RANKED
from .told import DOUBTFUL, Told, best, counted, layers, plural

WORST = 3


def answer(told: Told) -> list[str]:
    """Lines computed from the run; what it does not have is left out, or said to be missing."""
    groups = [some for some in layers(told.rows).values() if some[0].family != "copy"]
    reached = [row for row in map(best, groups) if row is not None]
    doubted = sum(best(some) is None and some[0].verdict in DOUBTFUL for some in groups)
    lines = [_reached(reached, doubted), *_of_peak(reached), *_worst(reached)]
    lines += _bought(told.gains)
    rest = [row.verdict for row in told.rows if row.verdict not in RANKED]
    if rest:
        lines.append(f"Not ranked, of {plural(len(told.rows), 'case')}: {counted(rest)}")
    elif told.rows:
        lines.append(f"All of {plural(len(told.rows), 'case')} verified, measured and ranked")
    return lines


def _reached(rows: Sequence[Achieved], doubted: int) -> str:
    shares = [row.percent_of_ceiling for row in rows if row.percent_of_ceiling is not None]
    if not shares and doubted:
        return f"Share of the measured ceilings that layers reach: in doubt for all {doubted:,}"
    if not shares:
        return "Share of the measured ceilings that layers reach: none was measured beside one"
    others = f"; in {doubted:,} more its figure is in doubt" if doubted else ""
    return (
        f"Layers reach {spread(shares)} of what plain copies reached in the same run "
        f"({plural(len(shares), 'layer')}, the fastest implementation of each{others})"
    )


def _of_peak(rows: Sequence[Achieved]) -> list[str]:
    shares = [row.percent_of_peak for row in rows if row.percent_of_peak is not None]
    peak = next((row.peak_gb_per_s for row in rows if row.peak_gb_per_s is not None), None)
    return [f"Of the peak of {number(peak, 4)} GB/s they reach {spread(shares)}"] if shares else []


def spread(shares: Sequence[float]) -> str:
    """Median and range of percentages: `92 % (74 to ≥100 %)`."""
    middle = f"{percent(median(shares))} %"
    if len(shares) == 1:
        return middle
    return f"{middle} at the median ({percent(min(shares))} to {percent(max(shares))} %)"


def _worst(rows: Sequence[Achieved]) -> list[str]:
    below = [row for row in rows if row.verdict == "below-ceiling"]
    below.sort(key=lambda row: row.percent_of_ceiling or row.percent_of_peak or 0)
    if not below:
        return []
    said = ", ".join(
        f"{row.operation} {short(row.direction)} {row.form} "
        f"{percent(row.percent_of_ceiling or row.percent_of_peak)} %"
        for row in below[:WORST]
    )
    return [f"Furthest below, in their fastest implementation: {said}"]


def _bought(gains: Sequence[Gain]) -> list[str]:
    lines = []
    for assisted in (False, True):
        some = [
            gain
            for gain in own_chain(gains)
            if bool(gain.l2_assisted) == assisted and gain.measured is not None
        ]
        if not some:
            continue
        by_form = {gain.fused: [g for g in some if g.fused == gain.fused] for gain in some}
        bought = ", ".join(
            f"{number(median(g.measured or 0.0 for g in group))}x with {form}"
            for form, group in by_form.items()
        )
        where = ", L2-assisted: intermediates may have stayed in the cache" if assisted else ""
        lines.append(
            f"Fusing buys at the median {bought}, where the bytes alone allow "
            f"{number(median(gain.predicted for gain in some))}x "
            f"({plural(len(some), 'comparison')} with the chain in the same implementation{where})"
        )
    return lines
