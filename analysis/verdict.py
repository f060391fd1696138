"""What a bandwidth means: a verdict per case and the one line that justifies it."""

from __future__ import annotations

from dataclasses import dataclass

from .cases import Case
from .statistics import Centre

LAUNCH_TIMES = 3
"""Below this many launch overheads a time is that of the launch."""
TIMER_TICKS = 200
"""Below this many steps of the timer a time is that of the timer."""
MAX_SPREAD = 0.10
"""Relative standard deviation between processes beyond which a case is unstable."""
MEMORY_SHARE = 0.80
"""Share of the ceiling from which on it is the memory that limits."""

TOO_FAST = 1.5
"""Times the ceiling from which on a rate that no known peak allows is not taken for the memory's:
noise in the copies does not explain it."""

RANKED = ("memory-bound", "below-ceiling")
"""Verdicts whose figures are compared with each other and with the ceilings."""


@dataclass(frozen=True)
class Verdict:
    name: str
    why: str


def sound(case: Case) -> Verdict | None:
    """Why the figures of a case are not to be ranked; None where nothing speaks against them."""
    time = case.time
    if case.status != "ok" or time is None:
        return Verdict(case.status, case.reason or "no reason was recorded")
    if case.traffic == 0:
        return Verdict("empty", "no byte has to move")
    overhead, tick = case.launch_overhead, case.tick
    if overhead and time.value < LAUNCH_TIMES * overhead:
        why = f"{microseconds(time.value)} with a launch overhead of {microseconds(overhead)}"
        return Verdict("launch-bound", why)
    if tick and time.value < TIMER_TICKS * tick:
        why = f"{microseconds(time.value)} is under {TIMER_TICKS} timer steps of"
        return Verdict("timer-limited", f"{why} {microseconds(tick)}")
    if case.placement != "device":
        why = f"{case.placement} memory, held to nothing that the device's own memory does"
        return Verdict("placed", why)
    return _cached(case, time) or _unsteady(case, time)


def _cached(case: Case, time: Centre) -> Verdict | None:
    rate = case.traffic / time.value / 1e9
    if case.dram_sized is None:
        return Verdict("unsized", "the size of the last-level cache is unknown")
    if not case.dram_sized:
        if case.write_residue is not None and case.write_residue > 0.05:
            why = f"{case.write_residue:.0%} of the bytes may not have left the cache"
        else:
            why = "the working set is under 4 times the last-level cache"
        return Verdict("cache-resident", why)
    if case.peak_gb_per_s is not None and rate > case.peak_gb_per_s:
        why = f"{rate:,.0f} GB/s beyond the peak of {case.peak_gb_per_s:,.0f}"
        return Verdict("above-peak", f"{why}: cache, wrong bytes or wrong peak")
    return None


def _unsteady(case: Case, time: Centre) -> Verdict | None:
    if case.throttled:
        return Verdict("throttled", "the SM clock fell below 75 % of its default")
    if time.spread is not None and time.spread > MAX_SPREAD:
        rates = sorted(case.traffic / seconds / 1e9 for seconds in case.medians.values())
        why = f"processes reach {rates[0]:,.1f} to {rates[-1]:,.1f} GB/s"
        return Verdict("unstable", f"{why}, a spread of {time.spread:.0%}")
    return None


def bound(share_of_ceiling: float | None, share_of_peak: float | None) -> Verdict:
    """The verdict of a sound, DRAM-sized case from the part of the ceiling it reaches."""
    if share_of_ceiling is None and share_of_peak is None:
        return Verdict("unjudged", "neither a copy with this read share nor a peak is known")
    what = "the copies with its read share" if share_of_ceiling is not None else "the peak"
    share = share_of_ceiling if share_of_ceiling is not None else share_of_peak or 0.0
    if share_of_peak is None and share > TOO_FAST:
        why = f"{share:,.3g} times {what}: cache, wrong bytes or bad copies"
        return Verdict("above-ceiling", why)
    if share > 1:
        return Verdict("memory-bound", f"as fast as {what}, or faster than they were measured")
    if share >= MEMORY_SHARE:
        return Verdict("memory-bound", f"{share:.0%} of {what}")
    return Verdict("below-ceiling", f"{share:.0%} of {what}: something else than memory limits")


def microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.3g} µs"
