"""Where a kernel spends its time: the loops, or the straight line, that move its bytes.

Read off machine code without running it. A loop counts with one turn. Where ways part, the one that
moves the most bytes in the widest accesses is taken. Of those that move as many, it is the longer
one where they differ in arithmetic alone, and the shorter one where other accesses are made. So
tails, rows cut between two vectors and the slow ways of divisions are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .machine import Instruction, Machine


@dataclass(frozen=True)
class Streams:
    """Which accesses carry the traffic: those that are told to stream, or else every one.

    What is left in the cache beside them (parameters that rows share, partial sums) does not move
    with every row. Loads of it that are wider than what streams are traffic too (rows of a table
    beside their index); stores of it never are: all results of a kernel stream, or none.
    """

    loads: str
    stores: str
    load_width: int
    store_width: int

    @classmethod
    def of(cls, code: Machine) -> Streams:
        load_width, streamed_load = _widest(code, "LDG", ""), _widest(code, "LDG", ".NA")
        store_width, streamed_store = _widest(code, "STG", ""), _widest(code, "STG", ".EF")
        return cls(
            ".NA" if streamed_load == load_width else "",
            ".EF" if streamed_store else "",
            load_width,
            streamed_store or store_width,
        )

    def loaded(self, one: Instruction) -> int:
        """Bytes of traffic that a thread loads with it."""
        mine = one.name == "LDGSTS" or (one.name == "LDG" and self.loads in one.opcode)
        return one.width if mine else 0

    def stored(self, one: Instruction) -> int:
        mine = one.name in {"STG", "RED"} and (self.stores in one.opcode or one.name == "RED")
        return one.width if mine else 0

    def widest(self, one: Instruction) -> int:
        """Bytes of traffic, of an access as wide as any of its kind."""
        loaded, stored = self.loaded(one), self.stored(one)
        return loaded * (loaded == self.load_width) + stored * (stored == self.store_width)


def _widest(code: Machine, name: str, mark: str) -> int:
    """Bytes of the widest of these accesses whose opcode contains `mark`."""
    found = (one.width for one in code.instructions if one.name == name and mark in one.opcode)
    return max(found, default=0)


_GLOBAL = {"LDG", "STG", "RED", "LDGSTS"}


@dataclass(frozen=True)
class Way:
    """One way through the code, in order; a loop in it stands for one of its turns.

    Loops included: wide_bytes, of traffic in the widest accesses; calls; count, of instructions;
    trace, which accesses to global memory it makes.
    """

    steps: tuple[Instruction | Way, ...]
    streams: Streams
    wide_bytes: int = 0
    calls: int = 0
    count: int = 0
    trace: int = 0

    def then(self, run: Sequence[Instruction]) -> Way:
        accesses = tuple(id(one) for one in run if one.name in _GLOBAL)
        return Way(
            (*self.steps, *run),
            self.streams,
            self.wide_bytes + sum(map(self.streams.widest, run)),
            self.calls + sum(one.name == "CALL" and not _jumps(one) for one in run),
            self.count + len(run),
            hash((self.trace, accesses)) if accesses else self.trace,
        )

    def then_round(self, loop: Way) -> Way:
        return Way(
            (*self.steps, loop),
            self.streams,
            self.wide_bytes + loop.wide_bytes,
            self.calls + loop.calls,
            self.count + loop.count,
            hash((self.trace, loop.trace)) if loop.trace else self.trace,
        )

    def better_than(self, other: Way | None) -> bool:
        """More bytes; then fewer calls, which are the slow ways of divisions; then, where both make
        the same accesses, the longer one, since a warp may take both, and else the shorter."""
        if other is None:
            return True
        if self.wide_bytes != other.wide_bytes:
            return self.wide_bytes > other.wide_bytes
        if self.calls != other.calls:
            return self.calls < other.calls
        longer = self.count > other.count
        return longer if self.trace == other.trace else not longer

    @property
    def loops(self) -> list[Way]:
        return [step for step in self.steps if isinstance(step, Way)]

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """With those of its loops."""
        parts = (s.instructions if isinstance(s, Way) else (s,) for s in self.steps)
        return tuple(one for part in parts for one in part)

    @cached_property
    def bytes_loaded(self) -> int:
        return sum(map(self.streams.loaded, self.instructions))

    @cached_property
    def bytes_stored(self) -> int:
        return sum(map(self.streams.stored, self.instructions))

    @cached_property
    def bytes_gathered(self) -> int:
        """Stored in shared memory by what moves no traffic: results, which another loop stores."""
        stores = (one.width for one in self.instructions if one.name == "STS")
        return 0 if self.bytes_loaded or self.bytes_stored else sum(stores)


_LOOPS_WEIGH = 4
"""A loop has so many turns at least: what is done once counts where loops move less than that."""


def busiest(path: Way) -> list[Way]:
    """The innermost loops that move the bytes, in order, or the whole path where none does.

    Where some of them only load and others only store, what lies between them and stores in shared
    memory is the work itself, and counts too.
    """
    moving = _innermost(path, lambda part: part.wide_bytes)
    loading = [part for part in moving if part.bytes_loaded and not part.bytes_stored]
    storing = [part for part in moving if part.bytes_stored and not part.bytes_loaded]
    if not loading or not storing or len(loading) + len(storing) < len(moving):
        return moving
    place = {id(one): i for i, one in enumerate(path.instructions)}
    gathering = [
        part
        for part in _innermost(path, lambda part: part.bytes_gathered)
        if place[id(loading[0].instructions[0])]
        < place[id(part.instructions[0])]
        < place[id(storing[-1].instructions[0])]
    ]
    return sorted(moving + gathering, key=lambda part: place[id(part.instructions[0])])


def _innermost(path: Way, weight: Callable[[Way], int]) -> list[Way]:
    """The innermost loops that have the weight, in order, or the whole path."""
    inner = [part for loop in path.loops for part in _innermost(loop, weight) if weight(part)]
    once = weight(path) - sum(map(weight, path.loops))
    if inner and sum(map(weight, inner)) * _LOOPS_WEIGH >= once:
        return inner
    return [path]


@dataclass(frozen=True)
class _Graph:
    """Basic blocks: [start, end) of instructions, and the blocks that may follow."""

    spans: Sequence[tuple[int, int]]
    following: Sequence[tuple[int, ...]]


def main_path(code: Machine) -> Way:
    """The way through a kernel that moves the most bytes: see `Way.better_than`."""
    graph = _blocks(code)
    streams = Streams.of(code)
    return _best(code, graph, streams, frozenset(range(len(graph.spans))), 0, loop=False)


def _blocks(code: Machine) -> _Graph:
    count = len(code.instructions)
    starts = {0, *(place for place in code.labels.values() if place < count)}
    starts |= {i + 1 for i, one in enumerate(code.instructions[:-1]) if _leaves(one)}
    ordered = sorted(starts)
    number = {start: block for block, start in enumerate(ordered)}
    spans = list(zip(ordered, [*ordered[1:], count], strict=True))
    following = []
    for _, end in spans:
        last = code.instructions[end - 1]
        after = [] if _ends(last) or end == count else [number[end]]
        if _jumps(last) and last.target:
            place = code.labels.get(last.target, count)
            after += [number[place]] if place in number else []
        following.append(tuple(after))
    return _Graph(spans, following)


def _jumps(one: Instruction) -> bool:
    """Whether it may go to its label: on sm_80 the last branch of a loop can be a CALL of one."""
    return one.target is not None and one.name in {"BRA", "JMP", "CALL"}


def _leaves(one: Instruction) -> bool:
    return _jumps(one) or one.name in {"BRX", "EXIT", "RET"}


def _ends(one: Instruction) -> bool:
    """Whether nothing follows it but its target."""
    conditional = _jumps(one) and (one.name == "CALL" or not one.operands.startswith("`"))
    return _leaves(one) and not one.guard and not conditional


def _best(
    code: Machine,
    graph: _Graph,
    streams: Streams,
    blocks: frozenset[int],
    entry: int,
    *,
    loop: bool,
) -> Way:
    """The best way from `entry` to where this region ends, or, in a loop, back to `entry`."""
    inside = {
        b: [n for n in graph.following[b] if n in blocks and not (loop and n == entry)]
        for b in blocks
    }
    parts = _components(inside, entry)
    part_of = {block: i for i, part in enumerate(parts) for block in part}
    best: dict[int, Way] = {}
    final: Way | None = None
    entries = {part_of[entry]: entry}
    for i in reversed(range(len(parts))):  # of what comes before, first
        part = parts[i]
        if i not in entries:
            continue
        path = best.get(i, Way((), streams))
        first = entries[i]
        if len(part) > 1 or first in inside[first]:
            path = path.then_round(_best(code, graph, streams, frozenset(part), first, loop=True))
        else:
            path = path.then(code.instructions[slice(*graph.spans[first])])
        goes_back = any(entry in graph.following[b] for b in part)
        leaves = any(not graph.following[b] or _may_exit(code, graph, b) for b in part)
        if (goes_back if loop else leaves) and path.better_than(final):
            final = path
        for block in part:
            for after in inside[block]:
                j = part_of[after]
                if j != i and path.better_than(best.get(j)):
                    best[j], entries[j] = path, after
    return final or Way((), streams)


def _may_exit(code: Machine, graph: _Graph, block: int) -> bool:
    return code.instructions[graph.spans[block][1] - 1].name == "EXIT"


def _components(following: Mapping[int, Iterable[int]], entry: int) -> list[list[int]]:
    """Strongly connected parts of what `entry` reaches, each before those that lead to it.

    Tarjan's algorithm, with a stack of its own instead of recursion.
    """
    index: dict[int, int] = {entry: 0}
    low = {entry: 0}
    open_, parts = [entry], []
    waiting = [(entry, iter(following[entry]))]
    while waiting:
        block, after = waiting[-1]
        fresh = next((n for n in after if _visit(n, block, index, low, open_)), None)
        if fresh is not None:
            index[fresh] = low[fresh] = len(index)
            open_.append(fresh)
            waiting.append((fresh, iter(following[fresh])))
            continue
        waiting.pop()
        if waiting:
            parent = waiting[-1][0]
            low[parent] = min(low[parent], low[block])
        if low[block] == index[block]:
            place = open_.index(block)
            parts.append(open_[place:])
            del open_[place:]
    return parts


def _visit(
    block: int, before: int, index: dict[int, int], low: dict[int, int], open_: list[int]
) -> bool:
    """Whether `block` has not been seen; one that is still open is noted."""
    if block in index and block in open_:
        low[before] = min(low[before], index[block])
    return block not in index
