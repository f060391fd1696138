"""One revision's worker of `ab`: opens a case when told to, and samples it when it is its turn.

    python -P -m membound.bench.ab_worker FD

Requests come through standard input, answers go to file descriptor FD, a JSON message a line
(`ab_protocol`). Two such workers live at once and hold the same inputs; they never sample together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from . import cases
from .ab_protocol import (
    PROTOCOL,
    Answer,
    Closed,
    Failed,
    Hello,
    Known,
    Listed,
    Open,
    Opened,
    Request,
    Sample,
    Sampled,
    Setup,
)
from .environment import ROOT
from .protocol import Item, Poisoned
from .worker import POISONED, depend_on_parent, write

if TYPE_CHECKING:
    from ..results.record import Cache
    from .session import Group, Sampler, Session


def main() -> int:
    depend_on_parent()
    out = int(sys.argv[1])
    encoder = msgspec.json.Encoder()

    def answer(message: Answer) -> None:
        write(out, encoder.encode(message) + b"\n")
        if isinstance(message, Poisoned):
            os._exit(POISONED)  # destructors of a dead CUDA context hang

    answer(Hello(PROTOCOL, str(ROOT)))
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=Setup)
    from .start import start

    opener = Opener(start(setup.setting), setup)
    answer(Listed(list(opener.known())))
    requests = msgspec.json.Decoder[Request](Request)
    for line in sys.stdin.buffer:
        answer(opener.handle(requests.decode(line)))
    return 0


@dataclass(frozen=True)
class _Case:
    item: Item
    label: str
    cache: Cache


@dataclass
class Opener:
    """The cases of one revision, of which one is open at a time."""

    session: Session
    setup: Setup
    _cases: dict[str, _Case] = field(default_factory=dict)
    _hashes: dict[str, str] = field(default_factory=dict)
    _group: Group | None = None
    _marks: list[list[int]] = field(default_factory=list)  # before the group, before the case
    _sampler: Sampler | None = None

    def known(self) -> Iterator[Known]:
        """Every selected case that this revision states."""
        from .records import blank
        from .run import items_of

        session = self.session
        selection = cases.known_part(session.catalogue, self.setup.selection)
        if selection is None:
            return
        budget = self.setup.setting.budget_bytes
        groups = cases.plan(session.catalogue, selection, session.target, budget)
        for item in items_of(groups):
            for label in item.implementations:
                for cache in item.caches:
                    record = blank(session.catalogue, item, label, cache, 0, 0)
                    self._cases[record.case] = _Case(item, label, cache)
                    self._hashes[record.case] = record.source_hash
                    yield Known(
                        record.case,
                        record.bytes_read,
                        record.bytes_written,
                        record.source_hash,
                        item.skips.get(label),
                    )

    def handle(self, request: Request) -> Answer:
        """The answer to one request. Whatever a kernel does costs its own case only."""
        from .session import ending

        try:
            if isinstance(request, Open):
                return self._open(request)
            if isinstance(request, Sample):
                return self._sample(request.seconds)
            return self._close()
        except Exception as error:
            self._leave()
            poisoned = self.session.poisoned()
            return Poisoned(poisoned) if poisoned is not None else Failed(*ending(error))

    def _open(self, request: Open) -> Answer:
        case, session = self._cases[request.case], self.session
        if self._group is None or self._group.item != case.item:
            self._give_up_group()
            self._marks = [session.arena.mark()]
            self._group = session.make_group(case.item)
        self._marks = [self._marks[0], session.arena.mark()]
        ready = session.ready(self._group, case.label, request.choice)
        if ready.verified.reason is not None:
            self._leave()
            return Failed("wrong", ready.verified.reason)
        refused = session.refuses(ready, case.cache)
        if refused is not None:
            self._leave()
            return Failed("skipped", refused)
        self._sampler = session.sampler(ready, case.cache)
        return Opened(
            dict(ready.prepared.choice),
            self._sampler.launch_overhead,
            session.timing.granularity,
            self._hashes[request.case],
        )

    def _sample(self, seconds: float) -> Answer:
        from .sampling import Rule, collect

        sampler = self._sampler
        assert sampler is not None, "nothing is open"
        # Half of the sets are twice the last-level cache, so that many launches drive the other
        # side's lines out; as many again make a block, and every set has its turn in two.
        half = -(-len(sampler.sets) // 2)
        for _ in range(half):
            sampler.sample()
        sampler.clocks.clear()
        rule = Rule(target=0, min_samples=max(3, half), max_samples=1000, seconds=seconds)
        taken = collect(sampler.sample, rule, perf_counter)
        clocks = [clock for clock in sampler.clocks if clock is not None]
        return Sampled(taken.seconds, self.session.timing.throttled(clocks))

    def _close(self) -> Answer:
        sampler = self._sampler
        assert sampler is not None, "nothing is open"
        self.session.timing.synchronize()
        reason = sampler.wrong()
        self._leave()
        return Closed() if reason is None else Failed("wrong", f"after timing: {reason}")

    def _leave(self) -> None:
        """Give back the open case's memory; the inputs of its group stay."""
        self._sampler = None
        if len(self._marks) == 2:
            self.session.arena.release(self._marks.pop())
        elif self._marks:
            self._give_up_group()

    def _give_up_group(self) -> None:
        self._group = None
        if self._marks:
            self.session.arena.release(self._marks[0])
            self._marks = []


if __name__ == "__main__":
    sys.exit(main())
