"""Which bandwidth to compare with, and how far it can be believed.

Order of belief: what the user gave; on discrete GPUs and MIG slices the device's own clock and
bus width; the spec sheet by whole name, memory and capability. Integrated devices report clocks
and widths that have nothing to do with their memory, so there only the sheet counts. Where
nothing is certain there is no peak, only a reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...results.record import Peak
from .sheet import GIB, SheetRow, find, named

DIFFERENCE = 0.015
"""Candidates further apart than this are reported."""

HOW_TO_GIVE = 'give it with --peak GBPS --peak-source "where the number is from"'

_SLICE_SLACK = 1.5
"""A MIG slice whose share of the bus exceeds its share of the memory by more than this reports the
bus of the whole card: bus and memory are divided in the same eighths."""


class BadPeak(ValueError):
    """A peak given by the user that is no bandwidth; one line."""

    exit_code = 2


@dataclass(frozen=True)
class Known:
    """What is known of a device's memory. `clock_khz` and `bus_bits` are the device's own words."""

    name: str | None
    memory_bytes: int | None
    capability: str | None
    integrated: bool
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
    if not (math.isfinite(gbps) and gbps > 0):
        raise BadPeak(f"--peak {gbps:g} is no bandwidth: give GB/s (1e9 bytes) above zero")
    words = " ".join((source or "").split())
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
    peak = Peak(
        gbps=round(attributes_gbps(known.clock_khz, known.bus_bits), 2),
        source="attributes",
        provenance=f"2 x {known.clock_khz / 1000:g} MHz x {known.bus_bits} bit / 8",
    )
    if known.integrated:
        return peak, "an integrated device's clock and bus width are not those of its memory"
    if known.mig is not None and _describes_whole_card(known, rows):
        return peak, "the clock and bus width describe the whole card, not this MIG slice"
    return peak, None


def _describes_whole_card(known: Known, rows: Sequence[SheetRow]) -> bool:
    whole = named(rows, (known.name or "").split(" MIG ")[0])
    if not whole or whole[0].bus_width_bits is None:
        return False
    if known.memory_bytes is None or known.bus_bits is None:
        return False
    memory_share = known.memory_bytes / (whole[0].memory_gib[0] * GIB)
    return known.bus_bits / whole[0].bus_width_bits > _SLICE_SLACK * memory_share


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
