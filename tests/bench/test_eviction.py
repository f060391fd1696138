"""The CPU's evictor against a cache of which everything is known."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import count

import pytest
from membound.bench.eviction import CpuEvictor
from membound.bench.sampling import Rule, TimerError, collect
from membound.bench.timers import WallTiming

QUARTER = 4096
LLC = 4 * QUARTER
HIT, MISS = 1.0, 3.0


class SimulatedCaches:
    """A shared cache and a private one per core, in pieces of a quarter's share of a core, the
    least recently read leaving first. Its clock moves by `HIT` or `MISS` a piece.

    shared: last-level caches that it really holds. private: pieces per core. by: which cores read.
    """

    def __init__(self, shared: int, private: int = 0, cores: int = 4, miss: float = MISS) -> None:
        self.now, self._miss, self._cores = 0.0, miss, cores
        self._capacity, self._private_capacity = shared * 4 * cores, private
        self._shared: OrderedDict[object, None] = OrderedDict()
        self._private: list[OrderedDict[object, None]] = [OrderedDict() for _ in range(cores)]
        self._names = count()
        self.given = 0

    def reading(self, nbytes: int) -> Callable[[], None]:
        assert nbytes == QUARTER
        name = next(self._names)
        self.given += 1

        def read() -> None:
            for core in range(self._cores):
                self._read(core, (name, core))

        return read

    def _read(self, core: int, piece: object) -> None:
        hit = piece in self._shared or piece in self._private[core]
        self.now += HIT if hit else self._miss
        for cache, capacity in (
            (self._shared, self._capacity),
            (self._private[core], self._private_capacity),
        ):
            cache[piece] = None
            cache.move_to_end(piece)
            while len(cache) > capacity:
                cache.popitem(last=False)

    def clock(self) -> float:
        return self.now


def evictor_of(
    caches: SimulatedCaches, kind: type[CpuEvictor] = CpuEvictor
) -> CpuEvictor:  # fmt: skip
    return kind(LLC, caches.reading, caches.clock)


@pytest.mark.parametrize(("holds", "multiple"), [(1, 2), (3, 4), (7, 8)])
def test_the_evictor_is_doubled_until_it_empties(holds: int, multiple: int) -> None:
    evictor = evictor_of(SimulatedCaches(holds))
    evictor.prove()
    assert evictor.multiple == multiple


def test_private_caches_are_emptied_too() -> None:
    """A core's share of two last-level caches is 8 pieces, of four 16."""
    evictor = evictor_of(SimulatedCaches(1, private=10))
    evictor.prove()
    assert evictor.multiple == 4


def test_where_memory_is_as_quick_as_the_cache_nothing_is_claimed() -> None:
    caches = SimulatedCaches(20, miss=1.1 * HIT)
    evictor = evictor_of(caches)
    evictor.prove()
    assert evictor.multiple is None
    before = caches.now
    evictor.evict()
    assert caches.now > before  # it evicts all the same


class EvictsNothing(CpuEvictor):
    def evict(self) -> None:
        return


class EvictsOneCoreOnly(CpuEvictor):
    """The private caches of the other cores keep what they hold, as with one thread reading."""

    caches: SimulatedCaches

    def evict(self) -> None:
        for quarter in range(len(self._quarters)):
            self.caches._read(0, ("other", quarter))
            self.caches._read(0, ("others", quarter))
            self.caches._read(0, ("other's", quarter))
            self.caches._read(0, ("others'", quarter))


def test_an_evictor_that_evicts_nothing_ends_as_a_stated_failure() -> None:
    evictor = evictor_of(SimulatedCaches(2), EvictsNothing)
    with pytest.raises(TimerError, match=r"8 times a cache does not empty it.* in 1\.00 of.*3\.00"):
        evictor.prove()


def test_an_evictor_of_one_core_is_seen() -> None:
    caches = SimulatedCaches(1, private=6)
    evictor = evictor_of(caches, EvictsOneCoreOnly)
    assert isinstance(evictor, EvictsOneCoreOnly)
    evictor.caches = caches
    with pytest.raises(TimerError, match="does not empty it"):
        evictor.prove()


def test_the_proof_is_given_once_and_only_for_the_cold_state() -> None:
    caches = SimulatedCaches(3)
    timing = WallTiming(evictor_of(caches))
    timing.steady([lambda: None])
    assert caches.given == 0
    for _ in range(3):
        timing.cold(lambda: None)
    assert timing.eviction_multiple == 4
    assert caches.given == 4 * 8 + 1


def test_a_failed_proof_costs_every_cold_case_and_is_not_tried_again() -> None:
    caches = SimulatedCaches(2)
    timing = WallTiming(evictor_of(caches, EvictsNothing))
    for _ in range(2):
        with pytest.raises(TimerError):
            timing.cold(lambda: None)
    assert caches.given == 4 * 8 + 1


def test_noise_of_others_cannot_be_told_from_none() -> None:
    """Every fourth read takes ten times as long: the least of some is what a read costs."""
    caches, reads = SimulatedCaches(3), count()

    def reading(nbytes: int) -> Callable[[], None]:
        quiet = caches.reading(nbytes)

        def read() -> None:
            before = caches.now
            quiet()
            if next(reads) % 4 == 0:
                caches.now += 9 * (caches.now - before)

        return read

    evictor = CpuEvictor(LLC, reading, caches.clock)
    evictor.prove()
    assert evictor.multiple in (4, 8)


def test_a_cold_sample_comes_after_eviction() -> None:
    caches = SimulatedCaches(1)
    timing = WallTiming(evictor_of(caches))
    mine = caches.reading(QUARTER)
    took = []

    def launch() -> None:
        before = caches.now
        mine()
        took.append(caches.now - before)

    collect(timing.cold(launch), Rule(seconds=0.0), lambda: 0.0)
    assert set(took) == {4 * MISS}


def test_launch_overhead_is_the_least_of_bounded_calls() -> None:
    timing = WallTiming(evictor_of(SimulatedCaches(1)))
    calls: list[None] = []
    overhead = timing.launch_overhead(lambda: calls.append(None))
    assert 0 < overhead < 1
    assert len(calls) <= 17
