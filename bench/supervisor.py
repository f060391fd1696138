"""Running workers so that one which crashes, hangs or poisons its device costs one case.

A record is on disk before the next case begins: the worker announces a case, then hands over its
record; a worker that ends in between loses exactly the cases it announced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from ..kernels.discovery import Catalogue
from ..results.record import Cache, Record
from .process import CASE_TIMEOUT_SECONDS, Loss, Worker
from .protocol import Event, Finished, Item, Missing, Plan, Poisoned, Started
from .records import MEMCPY, blank, case_name, ended

_MAX_FUTILE_STARTS = 2


class WorkerCannotStart(Exception):
    """Workers end before their first case; the message is the last one's reason."""

    exit_code = 4


@dataclass
class Supervisor:
    """Drives the workers of one process of a run.

    on_record: puts a record on disk; on_case: told what is being measured; on_missing: told what
    the device refused before anything was measured, and why.
    """

    catalogue: Catalogue
    on_record: Callable[[Record], None]
    on_case: Callable[[str], None]
    environ: dict[str, str]
    case_timeout: float = CASE_TIMEOUT_SECONDS
    on_missing: Callable[[str, str], None] = lambda what, why: None
    command: list[str] = field(
        default_factory=lambda: [sys.executable, "-P", "-m", "membound.bench.worker"]
    )

    def run(self, plan: Plan) -> None:
        """Work through the plan, restarting the worker after each loss.

        Raises WorkerCannotStart where no worker gets as far as a case. Whatever is raised, no
        worker is left behind.
        """
        done = set(plan.done)
        futile = 0
        while True:
            worker = Worker(self.command, self.environ, msgspec.json.Decoder(Event))
            try:
                reason, lost, progress = self._follow(worker, plan, done)
            finally:
                worker.end()
            if reason is None:
                return
            for record in self._lost_records(plan, lost, done, reason):
                self._keep(record, done)
            futile = 0 if progress else futile + 1
            if futile >= _MAX_FUTILE_STARTS:
                raise WorkerCannotStart(reason.text)

    def _follow(
        self, worker: Worker[Event], plan: Plan, done: set[tuple[str, int]]
    ) -> tuple[Loss | None, Started | None, bool]:
        """(why the worker ended early or None, what it had announced, whether it got anywhere)."""
        worker.send(msgspec.json.encode(replace(plan, done=sorted(done))))
        current: Started | None = None
        progress = False
        for event in worker.events(self.case_timeout):
            if isinstance(event, Started):
                current, progress = event, True
                self.on_case(event.cases[0])
            elif isinstance(event, Finished):
                progress = True
                self._keep(event.record, done)
            elif isinstance(event, Missing):
                self.on_missing(event.what, event.why)
            elif isinstance(event, Poisoned):
                return Loss("failed", event.reason), None, True
            else:
                return event, current, progress
        return None, None, True

    def _keep(self, record: Record, done: set[tuple[str, int]]) -> None:
        if (record.case, record.position) not in done:
            self.on_record(record)
            done.add((record.case, record.position))

    def _lost_records(
        self, plan: Plan, lost: Started | None, done: set[tuple[str, int]], loss: Loss
    ) -> Iterator[Record]:
        if lost is None:
            return
        for item, label, cache, position in _cases(plan):
            case = case_name(item, label, cache)
            if case in lost.cases and position == lost.position and (case, position) not in done:
                record = blank(self.catalogue, item, label, cache, plan.process, position)
                yield ended(record, loss.status, loss.text)


def _cases(plan: Plan) -> Iterator[tuple[Item, str, Cache, int]]:
    for item in plan.items:
        for label, position in zip(item.implementations, item.positions, strict=True):
            for cache in item.caches:
                yield item, label, cache, position
        for cache in plan.memcpy.caches:
            yield plan.memcpy, MEMCPY, cache, item.memcpy_position
