"""Which memory, beside its own, a device's kernels reach: by its attributes, never by a guess."""

from __future__ import annotations

from functools import partial

from ...results.record import Placement
from .probe import Probe

_REACHES: dict[Placement, str] = {
    "managed": "MANAGED_MEMORY",
    "pinned": "CAN_MAP_HOST_MEMORY",
    "pageable": "PAGEABLE_MEMORY_ACCESS",
}


def unplaceable(probe: Probe, ordinal: int) -> dict[Placement, str]:
    """Placement -> why device `ordinal` cannot be measured there; empty where it can."""
    reasons: dict[Placement, str] = {}
    for placement, attribute in _REACHES.items():
        reaches = probe.flag(attribute, partial(probe.machine.cuda, attribute, ordinal))
        if reaches is None:
            why = probe.missing.pop(attribute)
            reasons[placement] = f"unknown whether {placement} memory can be reached: {why}"
        elif not reaches:
            reasons[placement] = f"{placement} memory cannot be reached: {attribute} is 0"
    return reasons
