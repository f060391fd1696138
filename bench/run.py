"""A run: choose the device, plan the cases, measure them in fresh processes, keep every record."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Protocol

from msgspec.structs import replace as with_fields

from ..kernels.discovery import Catalogue, discover
from ..results import store
from ..results.reading import read_run
from ..results.record import SCHEMA, Environment, Record, Timer
from . import cases, presets
from .device.identity import device_folder
from .device.select import Selected, compute_processes, select, snapshot
from .environment import revision, versions
from .placed import with_placements
from .process import CASE_TIMEOUT_SECONDS, worker_environ
from .protocol import Choice, Item, Plan
from .records import MEMCPY, now
from .resuming import check_cases, check_code, check_device, plan_hash
from .supervisor import Supervisor, WorkerCannotStart
from .timer_choice import choose_timer, timer_warnings


class NothingToMeasure(Exception):
    """The selection has no case, or none that can run here; the message says why."""

    exit_code = 4


class Observer(Protocol):
    """Told how a run goes."""

    def begin(self, folder: Path, selected: Selected, total: int) -> None: ...

    def note(self, line: str) -> None: ...

    def case(self, name: str, process: int) -> None: ...

    def record(self, record: Record) -> None: ...


@dataclass(frozen=True)
class Request:
    """What the user asked for. None means the preset or the device decides."""

    selection: presets.Selection = field(default_factory=presets.Selection)
    device: str | None = None
    peak: float | None = None
    peak_source: str | None = None
    processes: int | None = None
    seed: int = 0
    out: Path = Path("results")
    time_limit: float | None = None
    seconds_per_case: float | None = None
    timer: str | None = None
    kernels: tuple[Path, ...] = ()
    command: tuple[str, ...] = ()
    case_timeout: float = CASE_TIMEOUT_SECONDS


@dataclass(frozen=True)
class Outcome:
    """Where the run is, and how many records ended how."""

    folder: Path
    counts: Counter[str]

    @property
    def exit_code(self) -> int:
        """1 where a result is wrong, 4 where nothing was measured, else 0."""
        if self.counts["wrong"]:
            return 1
        return 0 if self.counts["ok"] else 4


@dataclass(frozen=True)
class Planned:
    """What a request comes to on this machine."""

    catalogue: Catalogue
    selected: Selected
    groups: list[cases.Group]


def planned(request: Request) -> Planned:
    """Raises presets.UnknownName, select.UnknownDevice, select.NoSuchDevice and BrokenKernels."""
    catalogue = discover(request.kernels)
    selected = select(request.device, request.peak, request.peak_source)
    groups = _groups(catalogue, request, selected, selected.memory_budget_bytes)
    return Planned(catalogue, selected, groups)


def _groups(
    catalogue: Catalogue, request: Request, selected: Selected, budget_bytes: int
) -> list[cases.Group]:
    groups = cases.plan(catalogue, request.selection, selected.target, budget_bytes)
    return with_placements(groups, catalogue, request.selection, selected)


def measure(request: Request, observer: Observer, known: Planned | None = None) -> Outcome:
    """Run everything that `request` selects, or the part of it that `known` still holds.

    Raises what `planned` and `choose_timer` raise, NothingToMeasure, store.StoreError (before
    measuring where the folder cannot be written) and WorkerCannotStart. Records already written
    stay; a run without any is removed where no worker starts.
    """
    known = known or planned(request)
    catalogue, selected, groups = known.catalogue, known.selected, known.groups
    caches = {cache for group in groups for cache in group.caches}
    timer = choose_timer(request.timer, selected, caches)
    if not any(group.runnable for group in groups):
        raise NothingToMeasure(_why_nothing(groups))
    started = datetime.now(UTC)
    at = revision()
    folder = store.create_run(request.out / device_folder(selected.device), started, at.commit)
    preset = presets.preset_named(request.selection.preset)
    environment = Environment(
        schema=SCHEMA,
        run=folder.name,
        started_at=started.isoformat(timespec="seconds"),
        device=selected.device,
        peak=selected.peak,
        peak_reason=selected.peak_reason,
        peak_candidates=selected.peak_candidates,
        quirks=selected.quirks,
        warnings=[*selected.warnings, *timer_warnings(timer, selected), *_shrunk(groups)],
        missing=selected.missing,
        memory_budget_bytes=selected.memory_budget_bytes,
        host=selected.host,
        versions=versions(),
        before=snapshot(selected),
        processes_before=compute_processes(selected),
        commit=at.commit,
        dirty=at.dirty,
        commit_reason=at.reason,
        command=list(request.command or sys.argv),
        preset=preset.name,
        seed=request.seed,
        processes=request.processes or preset.processes,
        cache_states=sorted(caches),
        time_limit_seconds=request.time_limit or preset.time_limit,
        plan=plan_hash(groups, timer),
    )
    with store.RunWriter(folder) as writer:
        writer.write_environment(environment)
        run = _Run(catalogue, selected, groups, request, timer, environment, writer, observer)
        try:
            return run.processes([])
        except WorkerCannotStart:
            if not run.counts:
                writer.discard()
            raise


def resume(folder: Path, request: Request, observer: Observer) -> Outcome:
    """Measure what an interrupted run lacks: the same command, on the same device.

    Cases that have a record keep it, whatever it says. Raises as `measure`, and CannotResume where
    the device, its driver, the code or the options are others.
    """
    known = read_run(folder)
    catalogue = discover(request.kernels)
    selected = select(request.device, request.peak, request.peak_source)
    environment = check_device(folder, known, selected.device)
    check_code(folder, environment, revision())
    groups = _groups(catalogue, request, selected, environment.memory_budget_bytes)
    caches = {cache for group in groups for cache in group.caches}
    timer = choose_timer(request.timer, selected, caches)
    check_cases(folder, known, groups, timer)
    with store.RunWriter(folder) as writer:
        if writer.cut:
            observer.note(writer.cut)
        run = _Run(catalogue, selected, groups, request, timer, environment, writer, observer)
        return run.processes(known.records)


@dataclass
class _Run:
    catalogue: Catalogue
    selected: Selected
    groups: list[cases.Group]
    request: Request
    timer: Timer
    environment: Environment
    writer: store.RunWriter
    observer: Observer
    counts: Counter[str] = field(default_factory=Counter)
    choices: dict[str, Choice] = field(default_factory=dict)
    began: float = field(default_factory=monotonic)

    def processes(self, known: Sequence[Record]) -> Outcome:
        """One worker after another, each through all groups; then the closing snapshot."""
        self.choices = dict(self.environment.choices)
        self.counts.update(record.status for record in known)
        done = {(record.process, record.case, record.position) for record in known}
        plans = [self._plan(process, done) for process in range(self.environment.processes)]
        total = sum(_open_cases(plan) for plan in plans)
        self.observer.begin(self.writer.run, self.selected, total)
        for index, plan in enumerate(plans):
            self._one_process(plan, len(plans) - index)
        self.environment = with_fields(
            self.environment,
            finished_at=now(),
            after=snapshot(self.selected),
            processes_after=compute_processes(self.selected),
            choices=self.choices,
        )
        self.writer.write_environment(self.environment)
        return Outcome(self.writer.run, self.counts)

    def _one_process(self, plan: Plan, left: int) -> None:
        plan = with_fields(plan, deadline=self._deadline(left), choices=self.choices)
        cores = self.selected.target.multiprocessors if plan.kind == "cpu" else None
        supervisor = Supervisor(
            self.catalogue,
            self._keep,
            lambda name: self.observer.case(name, plan.process),
            worker_environ(cores),
            self.request.case_timeout,
            self._keep_missing,
        )
        try:
            supervisor.run(plan)
        except WorkerCannotStart as error:
            if not self.counts:
                raise
            kept = f"what was measured is kept: complete it with --resume {self.writer.run}"
            raise WorkerCannotStart(f"{error}; {kept}") from error

    def _keep_missing(self, what: str, why: str) -> None:
        missing = {**self.environment.missing, what: why}
        self.environment = with_fields(self.environment, missing=missing)

    def _keep(self, record: Record) -> None:
        self.writer.append(record)
        self.counts[record.status] += 1
        if record.choice:
            self.choices.setdefault(record.case.rpartition("/")[0], record.choice)
        self.observer.record(record)

    def _deadline(self, processes_left: int) -> float | None:
        """Each process has its share of what is left: the last one must not go without.

        On a clock that is never set and that all processes of a machine share. A run that is
        resumed has its time anew.
        """
        limit = self.environment.time_limit_seconds
        if limit is None:
            return None
        now = monotonic()
        return now + max(0.0, self.began + limit - now) / processes_left

    def _plan(self, process: int, done: set[tuple[int, str, int]]) -> Plan:
        preset = presets.preset_named(self.request.selection.preset)
        target = self.selected.target
        return Plan(
            process=process,
            items=list(items_of(self.groups, reverse=bool(process % 2))),
            memcpy=_memcpy_item(self.catalogue, self.groups, self.selected),
            kind=target.kind,
            ordinal=target.ordinal,
            target=asdict(target),
            default_mhz=self.selected.device.sm_clock_mhz,
            budget_bytes=self.environment.memory_budget_bytes,
            host_budget_bytes=self.selected.host_budget_bytes,
            seed=self.environment.seed,
            timer=self.timer,
            seconds_per_case=self.request.seconds_per_case or preset.seconds_per_case,
            deadline=None,
            choices={},
            kernels=[str(path) for path in self.request.kernels],
            done=sorted((case, position) for p, case, position in done if p == process),
        )


def items_of(groups: Iterable[cases.Group], reverse: bool = False) -> Iterable[Item]:
    """Implementations forward, or reversed, so that drift does not fall on the same one."""
    position = 0
    for group in groups:
        labels = list(reversed(group.implementations) if reverse else group.implementations)
        yield Item(
            operation=group.operation,
            direction=group.direction,
            dtype=group.dtype,
            dims=group.shape.dims,
            caches=list(group.caches),
            implementations=labels,
            positions=list(range(position, position + len(labels))),
            skips=group.skips,
            memcpy_position=position + len(labels),
            placement=group.placement,
        )
        position += len(labels) + 1


def _memcpy_item(catalogue: Catalogue, groups: Sequence[cases.Group], selected: Selected) -> Item:
    caches = tuple(sorted({cache for group in groups for cache in group.caches}))
    group = cases.copy_group(catalogue, groups[0].dtype, caches, selected.target)
    (item,) = items_of([replace(group, implementations=(MEMCPY,))])
    return item


def _open_cases(plan: Plan) -> int:
    done = set(plan.done)
    return sum(
        1
        for item in plan.items
        for position in item.positions
        for _ in item.caches
        if not any(known == position for _, known in done)
    )


def _shrunk(groups: Iterable[cases.Group]) -> list[str]:
    return [f"{group.stem}: {group.shrunk}" for group in groups if group.shrunk]


def _why_nothing(groups: Sequence[cases.Group]) -> str:
    reasons = {reason for group in groups for reason in group.skips.values()}
    if reasons:
        return f"nothing selected can run here: {'; '.join(sorted(reasons))}"
    return (
        "the selection has no case: no operation has this direction, dtype and implementation; "
        "memory other than the device's is measured with cuda kernels of the copy family"
    )
