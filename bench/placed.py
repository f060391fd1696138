"""Plain streams once more, over memory that is not the device's own: managed, pinned, pageable.

On a discrete GPU that is the link to the host, or what migrates over it; where CPU and GPU share
one memory it says what sharing costs. Such a case is named apart and held to no ceiling of the
device's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..kernels.discovery import Catalogue
from ..results.record import Placement
from .cases import CEILINGS, Group, matching, wrong_device
from .device.selected import Selected
from .presets import Selection, preset_named

FAMILY, IMPLEMENTATION = "copy", "cuda"
"""What is measured there: the memory is what differs, so one kernel of each stream is enough."""


def with_placements(
    groups: Sequence[Group], catalogue: Catalogue, selection: Selection, selected: Selected
) -> list[Group]:
    """The planned groups of the placements wanted, those of device memory first.

    Operations that are named are placed where they are of the copy family; where none is named,
    the ceilings are.
    """
    wanted = selection.placements
    if not wanted:
        on_gpu = selected.target.kind == "cuda"
        wanted = preset_named(selection.preset).placements if on_gpu else ("device",)
    named = [o.name for o in matching(catalogue, selection.operations) if o.family == FAMILY]
    chosen = named if selection.operations else CEILINGS
    streams = [g for g in groups if g.operation in chosen and g.shape.kind == "scaled"]
    kept = list(groups) if "device" in wanted else []
    for placement in wanted:
        if placement != "device":
            kept += _placed(streams, placement, selected)
    return kept


def _placed(streams: Sequence[Group], placement: Placement, selected: Selected) -> Iterator[Group]:
    """Each stream in its first dtype: a byte is a byte in the others."""
    seen: set[str] = set()
    refused = wrong_device(IMPLEMENTATION, selected.target) or selected.unplaceable.get(placement)
    for group in streams:
        measured = IMPLEMENTATION in group.implementations or selected.target.kind == "cpu"
        if group.operation in seen or not measured:
            continue
        seen.add(group.operation)
        skips = {IMPLEMENTATION: refused} if refused else group.skips
        yield replace(
            group, placement=placement, implementations=(IMPLEMENTATION,), skips=skips, shrunk=None
        )
