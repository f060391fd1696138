"""Emptying the CPU's caches, and the proof that they were emptied (a GPU's is in `gpu.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from .arena import huge_pages
from .sampling import TimerError

EVICTION_MULTIPLES = (2, 4, 8)
"""Last-level caches of other bytes to read for emptying one, the smallest that is enough."""
EMPTIED = 0.75
"""A cache is empty once reading what it held costs this much of what memory adds to it."""

_TOLD_APART = 1.25
"""Memory must take this much longer than the cache for the difference to show anything."""
_ROUNDS = 5

Read = Callable[[], None]


class CpuEvictor:
    """Other bytes, read in quarters of a last-level cache, each by all cores.

    Every core reads the same part of every quarter, so its private caches are emptied along with
    the shared one, and the proof, which reads a quarter again in the same parts, covers both.

    reading: gives what reads so many bytes of new memory.
    clock: seconds; by default those that this process spent on a core, since waiting for a busy one
        would hide what memory costs.
    """

    def __init__(
        self,
        llc_bytes: int,
        reading: Callable[[int], Read] | None = None,
        clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._quarter_bytes = max(llc_bytes // 16 * 4, 4096)  # whole floats
        self._reading, self._clock = reading or reading_by_all_cores, clock
        self._quarters: list[Read] = []
        self._failure: str | None = None
        self._shown = False

    @property
    def multiple(self) -> int | None:
        """Last-level caches that one eviction reads and was shown to need.

        None before the proof, and where memory is too little slower than the cache to show it.
        """
        return len(self._quarters) // 4 if self._shown else None

    def evict(self) -> None:
        for read in self._quarters:
            read()

    def prove(self) -> None:
        """Once: take the smallest multiple after which a quarter comes at the speed of memory.

        Raises TimerError where the largest one does not bring that about.
        """
        if self._failure is None and not self._quarters:
            self._failure = self._sized()
        if self._failure is not None:
            raise TimerError(self._failure)

    def _sized(self) -> str | None:
        others = [self._reading(self._quarter_bytes) for _ in range(4 * EVICTION_MULTIPLES[-1])]
        held = self._reading(self._quarter_bytes)
        for multiple in EVICTION_MULTIPLES:
            self._quarters = others[: 4 * multiple]
            rounds = [self._round(held, others) for _ in range(_ROUNDS)]
            cached, memory, evicted = map(min, zip(*rounds, strict=True))
            told_apart = memory > _TOLD_APART * cached
            if not told_apart or evicted - cached >= EMPTIED * (memory - cached):
                self._shown = told_apart
                return None
        self._quarters = []
        return (
            f"reading {EVICTION_MULTIPLES[-1]} times a cache does not empty it: what it held comes "
            f"in {evicted / cached:.2f} of a cached read's time, from memory in "
            f"{memory / cached:.2f}"
        )

    def _round(self, held: Read, others: Sequence[Read]) -> tuple[float, float, float]:
        """Seconds to read a quarter that is cached, that is in memory, and that was evicted: one
        after the other, so that a busy machine slows all three."""
        held()
        cached = self._seconds(held)
        first, *rest = others
        for read in rest:  # since `first` was read: far more than a cache can hold
            read()
        memory = self._seconds(first)
        held()
        self.evict()
        return cached, memory, self._seconds(held)

    def _seconds(self, read: Read) -> float:
        start = self._clock()
        read()
        return self._clock() - start


def reading_by_all_cores(nbytes: int) -> Read:
    """New memory of `nbytes`; torch gives each of its threads the same part at every read."""
    memory = huge_pages(nbytes).view(torch.float32)  # pages alike: only caches tell reads apart

    def read() -> None:
        memory.sum()  # the ordinary path, which leaves clean lines behind

    return read
