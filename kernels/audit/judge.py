"""What is judged of one launch, and by which limits.

Machine code: no local memory, no float64, accesses of 16 bytes or more on aligned rows, launches
that the device accepts. Issue: instructions and special functions per byte, against what a device
issues while it copies. In flight: the loads that resident threads wait for, against bandwidth x
latency. The devices are those of `target.PARTS`, at the boost clock and sheet bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..target import PARTS, Part, Target
from .cases import Case, Launch
from .exemptions import Audit, Fault
from .machine import Machine
from .main_path import Way
from .occupancy import does_not_fit, occupancy, resident_blocks
from .traffic import Cost, bytes_in_flight, cost

WIDE = 16
"""Bytes that one thread should move at once."""
MOST_ISSUE = 0.6
"""Of what a device can issue at copy speed."""
LATENCY = 0.9e-6
"""Seconds that a load is on its way under load: with it an H200 wants 33 KB in flight, amid the 25
to 40 KB per multiprocessor that it is known to need."""
_BULK = 0.1
"""A launch that moves less of the traffic than this is not held to the speed of memory."""
_ISSUED_PER_CLOCK = 128  # thread instructions: four schedulers, a warp each
_SPECIAL_PER_CLOCK = 16  # thread instructions to the special function units


@dataclass(frozen=True)
class Figures:
    """issue_share: of what each device can issue at copy speed. in_flight_margin: how many times
    what it must have in flight. None or empty where nothing can be said."""

    registers: int
    spill_bytes: int
    local_bytes: int
    shared_bytes: int
    load_bytes_max: int
    store_bytes_max: int
    occupancy: float
    instructions_per_byte: float | None
    special_per_byte: float | None
    issue_share: Mapping[str, float]
    bytes_in_flight_per_sm: int
    in_flight_margin: Mapping[str, float]


def unsound(code: Machine) -> dict[Audit, str]:
    """Why this machine code is not for a memory-bound kernel."""
    found: dict[Audit, str] = {}
    if code.local_accesses or code.local or code.stack:
        found["local_memory"] = (
            f"{code.local_accesses} accesses to local memory, stack of {code.stack} bytes"
        )
    if code.doubles:
        found["float64"] = f"float64 arithmetic: {code.doubles[0]}"
    return found


def figures(code: Machine, parts: Sequence[Way], launch: Launch, target: Target) -> Figures:
    """parts: the busiest of the code."""
    geometry = launch.recorded.geometry
    spent = cost(parts, launch.reads, launch.writes)
    blocks = resident_blocks(code, geometry, target)
    resident = min(blocks, -(-geometry.blocks // target.multiprocessors))
    flight = round(resident * geometry.threads * bytes_in_flight(parts))
    devices = [part for part in PARTS if part.arch == target.arch]
    return Figures(
        registers=code.registers,
        spill_bytes=code.spilled,
        local_bytes=code.stack + code.local,
        shared_bytes=code.shared + geometry.shared_bytes,
        load_bytes_max=max(code.access("LDG"), default=0),
        store_bytes_max=max(code.access("STG"), default=0),
        occupancy=occupancy(code, geometry, target),
        instructions_per_byte=round(spent.instructions, 3) if spent else None,
        special_per_byte=round(spent.special, 3) if spent else None,
        issue_share={d.name: issue_share(spent, d) for d in devices if spent and d.clock},
        bytes_in_flight_per_sm=flight,
        in_flight_margin={
            d.name: round(flight / needed_in_flight(d, launch.reads, launch.writes), 2)
            for d in devices
            if launch.reads
        },
    )


def issue_share(spent: Cost, part: Part) -> float:
    """Of what the part can issue in the time in which it copies a byte, what one takes.

    The dearer of all instructions and of special functions alone.
    """
    clocks = part.multiprocessors * (part.clock or 0.0) / part.bandwidth
    instructions = spent.instructions / (_ISSUED_PER_CLOCK * clocks)
    return round(max(instructions, spent.special / (_SPECIAL_PER_CLOCK * clocks)), 3)


def needed_in_flight(part: Part, reads: int, writes: int) -> float:
    """Bytes of loads that each multiprocessor must wait for at once (Little's law).

    Memory that also writes delivers that much less; stores are waited for by nobody.
    """
    read_share = reads / (reads + writes)
    return part.bandwidth * read_share * LATENCY / part.multiprocessors


def fault(case: Case, audit: Audit, text: str) -> Fault:
    spec = case.spec
    named = spec.operation.name, spec.direction, spec.dtype.name, spec.target.arch
    return Fault(audit, text, *named, case.kind, spec.variant)


def faults(case: Case, launch: Launch, code: Machine, known: Figures) -> list[Fault]:
    """What is wrong with this launch; exemptions are not looked at.

    Ragged rows are reported, and not held to the speed of memory.
    """
    texts = unsound(code)
    limit = does_not_fit(code, launch.recorded.geometry, case.spec.target)
    if limit:
        texts["launch"] = limit
    bulk = case.spec.io.traffic * _BULK
    aligned = case.kind != "ragged"
    if aligned and launch.reads > bulk and known.load_bytes_max < WIDE:
        texts["load_width"] = f"loads of {known.load_bytes_max} bytes"
    if aligned and launch.writes > bulk and known.store_bytes_max < WIDE:
        texts["store_width"] = f"stores of {known.store_bytes_max} bytes"
    if aligned and launch.reads > bulk and not limit:
        texts |= too_little_in_flight(known)
    if aligned and launch.reads + launch.writes > bulk:
        texts |= issue_bound(known)
    return [fault(case, audit, text) for audit, text in texts.items()]


def too_little_in_flight(known: Figures) -> dict[Audit, str]:
    margin, device = _worst(known.in_flight_margin, min)
    if margin is None or margin >= 1:
        return {}
    return {"in_flight": f"{margin:.2f} of the loads that {device} must have in flight"}


def issue_bound(known: Figures) -> dict[Audit, str]:
    share, device = _worst(known.issue_share, max)
    if share is None or share <= MOST_ISSUE:
        return {}
    return {"issue": f"{share:.0%} of what {device} can issue at copy speed"}


def _worst(
    by_device: Mapping[str, float],
    worst: Callable[[Iterable[tuple[float, str]]], tuple[float, str]],
) -> tuple[float, str] | tuple[None, str]:
    pairs = [(value, device) for device, value in by_device.items()]
    return worst(pairs) if pairs else (None, "")
