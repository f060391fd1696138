"""Which bandwidth to compare with, and how far it can be believed.

Order of belief: what the user gave; on discrete GPUs and MIG slices the device's own clock and
bus width; the spec sheet by whole name, memory and capability. Integrated devices report clocks
and widths that have nothing to do with their memory, so there only the sheet counts. Where
nothing is certain there is no peak, only a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...results.checked import printable
from ...results.record import Peak
from .sheet import GIB, SheetRow, find, named

DIFFERENCE = 0.015
"""Candidates further apart than this are reported."""

PLAUSIBLE_GBPS = (1.0, 100_000.0)
"""Clock and bus width that make less or more than this are not those of a memory."""

HOW_TO_GIVE = 'give it with --peak GBPS --peak-source "where the number is from"'

_SLICE_SLACK = 1.5
"""A MIG slice whose share of the bus exceeds its share of the memory by more than this reports the
bus of the whole card: bus and memory are divided in the same eighths."""


class BadPeak(ValueError):
    """A peak given by the user that is no bandwidth; one line."""

    exit_code = 2


@dataclass(frozen=True)
class Known:
    """What is known of a device's memory. `clock_khz` and `bus_bits` are the device's own words.

    integrated: None where neither the device nor the sheet says.
    """

    name: str | None
    memory_bytes: int | None
    capability: str | None
    integrated: bool | None
    mig: str | None
    clock_khz: int | None
    bus_bits: int | None


@dataclass(frozen=True)
class Decision:
    """The peak, or why there is none; every candidate in order of belief; what to warn of."""

    peak: Peak | None
    reason: str | None
    candidates: tuple[Peak, ...]
    warnings: tuple[str, ...]
    sheet_reason: str | None  # why the sheet gives no candidate
    row: SheetRow | None


def attributes_gbps(clock_khz: int, bus_bits: int) -> float:
    """GB/s (1e9) of a double-data-rate memory: 2 × clock × bus width / 8."""
    return 2 * clock_khz * 1000 * bus_bits / 8 / 1e9


def user_peak(gbps: float | None, source: str | None) -> Peak | None:
    """The peak that the user gave; raises BadPeak for no bandwidth, or a source without one."""
    if gbps is None:
        if source is not None:
            raise BadPeak("--peak-source needs --peak GBPS beside it")
        return None
    low, high = PLAUSIBLE_GBPS
    if not low <= gbps <= high:
        above = f"from {low:g} to {high:g}" if gbps > 0 else "above zero"
        raise BadPeak(f"--peak {gbps:g} is no bandwidth: give GB/s (1e9 bytes) {above}")
    words = printable(" ".join((source or "").split()))
    return Peak(gbps=gbps, source="user", provenance=words or "given without a source")


def decide(known: Known, rows: Sequence[SheetRow], user: Peak | None) -> Decision:
    """Choose among the user's value, the attributes and the sheet; see the module for the order."""
    attributes, distrust = _attributes(known, rows)
    match = find(rows, known.name, known.memory_bytes, known.capability)
    sheet = None
    if match.row is not None:
        sheet = Peak(
            gbps=match.row.peak_gbps,
            source="sheet",
            provenance=f"{match.row.marketing_name}: {match.row.source}",
        )
    believed = (user, None if distrust else attributes, sheet)
    peak = next((candidate for candidate in believed if candidate is not None), None)
    order = (user, sheet, attributes) if distrust else (user, attributes, sheet)
    candidates = tuple(candidate for candidate in order if candidate is not None)
    reason = None
    if peak is None:
        own = distrust or "the device does not tell memory clock and bus width"
        reason = f"{own}; sheet: {match.reason}; {HOW_TO_GIVE}"
    return Decision(
        peak=peak,
        reason=reason,
        candidates=candidates,
        warnings=tuple(_differences(peak, candidates, distrust)),
        sheet_reason=match.reason,
        row=match.row,
    )


def _attributes(known: Known, rows: Sequence[SheetRow]) -> tuple[Peak | None, str | None]:
    """(candidate from clock and bus width, why it is not to be believed)."""
    if known.clock_khz is None or known.bus_bits is None:
        return None, None
    gbps = attributes_gbps(known.clock_khz, known.bus_bits)
    provenance = f"2 x {known.clock_khz / 1000:g} MHz x {known.bus_bits} bit / 8"
    if not PLAUSIBLE_GBPS[0] <= gbps <= PLAUSIBLE_GBPS[1]:
        return None, f"{provenance} = {gbps:.3g} GB/s is no memory's bandwidth"
    peak = Peak(gbps=round(gbps, 2), source="attributes", provenance=provenance)
    if known.integrated:
        return peak, "an integrated device's clock and bus width are not those of its memory"
    if known.integrated is None:
        return peak, "whether it shares the host's memory is unknown, so its clock may mean nothing"
    if known.mig is not None:
        return peak, _not_the_slice(known, rows)
    return peak, None


def _not_the_slice(known: Known, rows: Sequence[SheetRow]) -> str | None:
    """Why clock and bus width may not be a MIG slice's own; None where they are."""
    name = (known.name or "").split(" MIG ")[0]
    whole = next((row for row in named(rows, name) if row.bus_width_bits), None)
    if whole is None or known.memory_bytes is None:
        return "whether clock and bus width are the slice's or the whole card's cannot be told"
    memory_share = known.memory_bytes / (whole.memory_gib[0] * GIB)
    if (known.bus_bits or 0) / (whole.bus_width_bits or 1) > _SLICE_SLACK * memory_share:
        return "the clock and bus width describe the whole card, not this MIG slice"
    return None


def _differences(peak: Peak | None, candidates: Sequence[Peak], distrust: str | None) -> list[str]:
    if peak is None:
        return []
    warnings = []
    for other in candidates:
        difference = other.gbps / peak.gbps - 1
        if other is peak or abs(difference) <= DIFFERENCE:
            continue
        because = f": {distrust}" if distrust and other.source == "attributes" else ""
        warnings.append(
            f"peak {peak.gbps:g} GB/s ({peak.source}) is used; {other.source} would say "
            f"{other.gbps:g} ({difference:+.1%}){because}"
        )
    return warnings
