"""What one thread does for the bytes it moves, on the main path: instructions, bytes in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .main_path import Way


@dataclass(frozen=True)
class Cost:
    """Per byte of traffic, of one thread. special: MUFU, a quarter of a warp at a time and less."""

    instructions: float
    special: float


def cost(parts: Sequence[Way], reads: int, writes: int) -> Cost | None:
    """What the busiest parts of a kernel spend per byte; None where they move none.

    reads, writes: bytes of the whole launch. Where some loops only load and others only store, each
    takes as many turns as its bytes need, and one that gathers results in shared memory as many as
    those need; otherwise each takes as many turns as the others. What is only stored to scratch is
    left out.
    """
    if reads and not writes:
        parts = [part for part in parts if part.bytes_loaded]
    loads = sum(part.bytes_loaded for part in parts)
    stores = sum(part.bytes_stored for part in parts)
    apart = all(not part.bytes_loaded or not part.bytes_stored for part in parts)
    if apart and loads and stores and reads and writes:
        gathered = sum(part.bytes_gathered for part in parts)
        turns = [
            reads / loads
            if part.bytes_loaded
            else writes / (stores if part.bytes_stored else gathered)
            for part in parts
        ]
        moved: float = reads + writes
    else:
        turns = [1.0] * len(parts)
        moved = _moved(loads, stores, reads, writes)
    if not moved:
        return None
    return Cost(
        sum(n * len(part.instructions) for n, part in zip(turns, parts, strict=True)) / moved,
        sum(n * _special(part) for n, part in zip(turns, parts, strict=True)) / moved,
    )


def _moved(loads: int, stores: int, reads: int, writes: int) -> float:
    """Bytes of one turn, in the proportion of the whole launch.

    An access that few threads make (a statistic of a row, partial sums) looks in machine code as if
    every thread made it; the operands say what it is worth.
    """
    if not reads and not writes:
        return loads + stores
    bounds: list[float] = [loads + stores]
    if loads and reads:
        bounds.append(loads * (1 + writes / reads))
    if stores and writes:
        bounds.append(stores * (1 + reads / writes))
    return min(bounds)


def _special(part: Way) -> int:
    return sum(one.name == "MUFU" for one in part.instructions)


def bytes_in_flight(parts: Sequence[Way]) -> float:
    """Most bytes of traffic that a thread has asked for and not used yet.

    A load is waited for where a register that it fills is first named; one to shared memory at the
    next barrier of its kind. Loops are gone round twice: loads may be used a turn later. Loops that
    follow one another count by the time they take: the harmonic mean over what they load.
    """
    loading = [part for part in parts if part.bytes_loaded]
    if not loading:
        return 0.0
    time = sum(part.bytes_loaded / _most_waiting(part) for part in loading)
    return sum(part.bytes_loaded for part in loading) / time


def _most_waiting(part: Way) -> int:
    waiting: dict[frozenset[int], int] = {}
    asynchronous = most = 0
    for one in part.instructions * 2:
        if one.name == "DEPBAR":
            asynchronous = 0
        named = one.registers
        waiting = {filled: n for filled, n in waiting.items() if filled.isdisjoint(named)}
        loaded = part.streams.loaded(one)
        if loaded and one.name == "LDGSTS":
            asynchronous += loaded
        elif loaded:
            waiting[one.loaded] = loaded
        most = max(most, sum(waiting.values()) + asynchronous)
    return most
