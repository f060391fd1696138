"""Two revisions measured against each other, alternating: small changes on a noisy machine.

A is a revision that is checked out into a folder of its own, B the working tree as it is. A worker
of each holds the same inputs; for one case at a time they take samples in blocks A B B A (B A A B
after every other restart, so that neither is always the first to find its memory). Then both are
started afresh, because what memory a process gets differs more than its samples do.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic

import msgspec

from ..analysis.compare import Comparison
from ..analysis.judge import DECIDED, Compared
from ..analysis.sequential import Sequential, Sides, hodges_lehmann
from ..analysis.verdict import LAUNCH_TIMES, TIMER_TICKS
from ..kernels.discovery import discover
from .ab_protocol import (
    PROTOCOL,
    Answer,
    Close,
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
from .cases import plan
from .device.select import Selected, compute_processes, select
from .environment import ROOT, revision
from .presets import Selection
from .process import CASE_TIMEOUT_SECONDS, Loss, Worker, worker_environ
from .protocol import Choice, Poisoned, Setting
from .timer_choice import usual_timer
from .worktree import checked_out, commit_of

TIME_LIMIT_SECONDS = 600.0


class NoCommonProtocol(Exception):
    """A revision whose worker cannot be spoken to; the message says which and why."""

    exit_code = 3


class SourcesChanged(Exception):
    """The working tree was edited while it was measured; the message says which case shows it."""

    exit_code = 2


@dataclass(frozen=True)
class Comparing:
    """What the user asked for. `rounds` of four blocks of `block_seconds` make a restart."""

    revision: str
    selection: Selection = field(default_factory=Selection)
    device: str | None = None
    seed: int = 0
    kernels: tuple[Path, ...] = ()
    time_limit: float = TIME_LIMIT_SECONDS
    block_seconds: float = 0.02
    rounds: int = 12
    case_timeout: float = CASE_TIMEOUT_SECONDS
    root: Path = ROOT


class _Lost(Exception):
    """A worker that ended or hung before it answered."""

    def __init__(self, side: Side, loss: Loss) -> None:
        super().__init__(loss.text)
        self.side, self.loss = side, loss


class _Unusable(Exception):
    """Why a case cannot be compared: its verdict and reason, and whether B's result is wrong."""

    def __init__(self, verdict: str, reason: str, wrong: bool = False) -> None:
        super().__init__(reason)
        self.verdict, self.wrong = verdict, wrong


@dataclass
class Side:
    """One revision: where its code is, what it chose, and its worker."""

    name: str
    tree: Path
    environ: Mapping[str, str]
    setting: Setting
    lost_as: str  # verdict of a case that this side alone has not
    choices: dict[str, Choice] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    _worker: Worker[Answer] | None = None
    _answers: Iterator[Answer | Loss] = field(default_factory=lambda: iter(()))

    def start(self, selection: Selection, timeout: float) -> list[Known]:
        """A fresh worker's cases. Raises NoCommonProtocol."""
        command = [sys.executable, "-P", "-m", "membound.bench.ab_worker"]
        decoder = msgspec.json.Decoder[Answer](Answer)
        self._worker = Worker(command, self.environ, decoder)
        self._answers = self._worker.events(timeout)
        try:
            hello = self._next()
            if not isinstance(hello, Hello) or hello.protocol != PROTOCOL:
                spoken = hello.protocol if isinstance(hello, Hello) else type(hello).__name__
                raise NoCommonProtocol(f"{self.name} speaks protocol {spoken}, not {PROTOCOL}")
            if Path(hello.root) != self.tree:
                raise NoCommonProtocol(f"{self.name} was to run {self.tree}, not {hello.root}")
            listed = self.ask(Setup(self.setting, selection))
        except _Lost as error:
            raise NoCommonProtocol(f"{self.name} has no worker that starts: {error}") from None
        except msgspec.DecodeError as error:
            raise NoCommonProtocol(f"{self.name} speaks another protocol: {error}") from None
        assert isinstance(listed, Listed)
        return listed.cases

    def ask(self, request: Request | Setup) -> Answer:
        """Raises _Lost where the worker does not live to answer."""
        assert self._worker is not None
        self._worker.send(msgspec.json.encode(request) + b"\n", last=False)
        return self._next()

    def end(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _next(self) -> Answer:
        answer = next(self._answers, Loss("failed", "worker ended without an answer"))
        if isinstance(answer, Poisoned):
            answer = Loss("failed", answer.reason)
        if isinstance(answer, Loss):
            raise _Lost(self, answer)
        return answer


def ab(request: Comparing, judge: Sequential, say: Callable[[str], None]) -> Comparison:
    """Measure until `judge` has decided every case, or learns no more, or the time is up.

    say: told how it goes, a line at a time. Raises what `select` and `check_names` raise,
    worktree.NoRevision, NoCommonProtocol and SourcesChanged. No worker and no tree is left behind.
    """
    selected = select(request.device)
    plan(
        discover(request.kernels), request.selection, selected.target, selected.memory_budget_bytes
    )  # a name that selects nothing here is the user's mistake, not the other revision's
    with ExitStack() as stack:
        tree = stack.enter_context(checked_out(request.root, request.revision))
        links = Path(stack.enter_context(TemporaryDirectory(prefix="membound-ab-")))
        a = side_of(request, selected, tree, links / "a", f"A ({request.revision})", "new")
        b = side_of(request, selected, request.root, links / "b", "B (working tree)", "missing")
        say(f"A: {request.revision}, commit {commit_of(tree)[:7]}")
        say(f"B: the working tree, {_state(request.root)}")
        before = compute_processes(selected)
        stack.callback(a.end)
        stack.callback(b.end)
        match = Match(request, judge, a, b, say)
        rows = match.play()
        after = compute_processes(selected)
    others = sorted({*(before or ()), *(after or ())})
    if others:
        match.doubts.append(f"other compute processes: {', '.join(others)}")
    return Comparison(rows, doubts=match.doubts, wrong=match.wrong)


@dataclass
class Match:
    """A comparison under way.

    pairs: the case of A and the case of B that are compared, by what to call that; empty: every
    case with its namesake.
    """

    request: Comparing
    judge: Sequential
    a: Side
    b: Side
    say: Callable[[str], None]
    pairs: dict[str, tuple[str, str]] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0  # that it took
    _times: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    _ticks: dict[str, float] = field(default_factory=dict)
    _unusable: dict[str, Compared] = field(default_factory=dict)
    _began: float = field(default_factory=monotonic)

    def play(self) -> list[Compared]:
        first, second = self._start()
        self.pairs = self.pairs or {case: (case, case) for case in [*first, *second]}
        for case, (ours, theirs) in self.pairs.items():
            try:
                self._same_case(first.get(ours), second.get(theirs))
                self._times[case] = ([], [])
            except _Unusable as reason:
                self._drop(case, reason)
        self.say(f"{len(self._times)} of {len(self.pairs)} cases can be compared")
        judged: dict[str, Compared] = {}
        for restart in range(1, self.judge.most + 1):
            waiting = [c for c in self._times if c not in self.judge.decided]
            if not waiting:
                break
            self._restart(restart, waiting)
            last = self._late() or restart == self.judge.most
            if last or self.judge.due(restart):
                judged = {row.case: row for row in self.judge.judge(self.sides(), last)}
            self.say(self._progress(restart, judged))
            if last:
                break
        self.seconds = monotonic() - self._began
        return [self._unusable.get(c) or judged[c] for c in self.pairs]

    def _start(self) -> list[dict[str, Known]]:
        """Fresh workers on both sides, and what they list."""
        listed = []
        for side in (self.a, self.b):
            side.end()
            cases = side.start(self.request.selection, self.request.case_timeout)
            listed.append({known.case: known for known in cases})
        return listed

    def _same_case(self, a: Known | None, b: Known | None) -> None:
        """Raises _Unusable unless both revisions state and can run the same case."""
        if a is None or b is None:
            side = self.a if a is None else self.b
            raise _Unusable(side.lost_as, f"not in {side.name}")
        for side, known in ((self.a, a), (self.b, b)):
            if known.skip is not None:
                verdict = "incomparable" if a.skip and b.skip else side.lost_as
                raise _Unusable(verdict, f"skipped in {side.name}: {known.skip}")
        for name in ("bytes_read", "bytes_written"):
            ours, theirs = getattr(a, name), getattr(b, name)
            if ours != theirs:
                raise _Unusable("incomparable", f"{name} differs: {ours:,} and {theirs:,}")

    def _restart(self, number: int, cases: Sequence[str]) -> None:
        """Every case once on fresh workers; those of the first restart have been started."""
        if number > 1:
            self._start()
        order = (self.a, self.b) if number % 2 else (self.b, self.a)
        for case in cases:
            if self._late():
                return
            try:
                self._times_of(case, order)
            except _Unusable as reason:
                self._drop(case, reason)
            except _Lost as error:
                side, loss = error.side, error.loss
                self._drop(
                    case, _Unusable(side.lost_as, f"{loss.status} in {side.name}: {loss.text}")
                )
                self._start()

    def _times_of(self, case: str, order: tuple[Side, Side]) -> None:
        """One restart's times of a case: open on both sides, alternate, close on both."""
        overhead = self._open(case, order)
        logs: list[float] = []
        one, other = order
        for side in (one, other, other, one) * self.request.rounds:
            sampled = self._answer(side, case, Sample(self.request.block_seconds))
            assert isinstance(sampled, Sampled)
            logs.append(math.log(median(sampled.seconds)))
            if sampled.throttled:
                self._doubt(f"throttled: {case} in {side.name}")
        for side in order:
            self._answer(side, case, Close())
        ratio, level = hodges_lehmann(_differences(logs)), median(logs)
        if order[0] is not self.a:
            ratio = -ratio
        a, b = (math.exp(level + half) for half in (-ratio / 2, ratio / 2))
        _check_worth(min(a, b), overhead, self._ticks[case])
        self._times[case][0].append(a)
        self._times[case][1].append(b)

    def _open(self, case: str, order: Sequence[Side]) -> float:
        """The larger launch overhead of the two sides, in seconds; 0 where there is none."""
        overhead = 0.0
        for side in order:
            own = self.pairs[case][0 if side is self.a else 1]
            opened = self._answer(side, case, Open(own, side.choices.get(own)))
            assert isinstance(opened, Opened)
            if side.hashes.setdefault(own, opened.source_hash) != opened.source_hash:
                raise SourcesChanged(f"{side.name} changed while it was measured: {own}")
            if opened.choice:
                side.choices.setdefault(own, opened.choice)
            self._ticks[case] = max(self._ticks.get(case, 0.0), opened.tick)
            overhead = max(overhead, opened.launch_overhead or 0.0)
        return overhead

    def _answer(self, side: Side, case: str, request: Request) -> Answer:
        """Raises _Unusable where the case failed on this side; the other side's is closed too."""
        answer = side.ask(request)
        if not isinstance(answer, Failed):
            return answer
        other = self.b if side is self.a else self.a
        other.ask(Close())
        wrong = answer.status == "wrong" and side is self.b
        reason = f"{answer.status} in {side.name}: {answer.reason}"
        raise _Unusable(side.lost_as, reason, wrong)

    def _drop(self, case: str, unusable: _Unusable) -> None:
        self._times.pop(case, None)
        self._unusable[case] = Compared(case, unusable.verdict, str(unusable))
        if unusable.wrong:
            self.wrong.append(case)
        if unusable.verdict != "incomparable":
            self.say(f"{unusable.verdict}: {case}: {unusable}")

    def _doubt(self, line: str) -> None:
        if line not in self.doubts:
            self.doubts.append(line)

    def sides(self) -> dict[str, Sides]:
        """The times of every case that can be compared, restart by restart."""
        return {
            case: Sides(base, current, self._ticks.get(case, 0.0))
            for case, (base, current) in self._times.items()
        }

    def _late(self) -> bool:
        return monotonic() - self._began > self.request.time_limit

    def _progress(self, restart: int, judged: Mapping[str, Compared]) -> str:
        decided = sum(judged[c].verdict in DECIDED for c in self._times if c in judged)
        left = max(0.0, self.request.time_limit - (monotonic() - self._began))
        return (
            f"restart {restart} of at most {self.judge.most}: {decided} of {len(self._times)} "
            f"cases decided, at most {left:.0f} s left"
        )


def _differences(logs: Sequence[float]) -> list[float]:
    """Second side less first of every two blocks that followed each other, in A B B A A B B A …"""
    pairs = zip(logs[::2], logs[1::2], strict=True)
    return [(b - a) * (-1) ** number for number, (a, b) in enumerate(pairs)]


def _check_worth(seconds: float, overhead: float, tick: float) -> None:
    """Raises _Unusable for a time that is the launch's or the timer's rather than the kernel's."""
    took = f"{seconds * 1e6:.3g} µs"
    if seconds < LAUNCH_TIMES * overhead:
        raise _Unusable("incomparable", f"launch-bound: {took}, a launch {overhead * 1e6:.3g} µs")
    if seconds < TIMER_TICKS * tick:
        raise _Unusable("incomparable", f"timer-limited: {took}, a tick {tick * 1e6:.3g} µs")


def side_of(
    request: Comparing, selected: Selected, tree: Path, links: Path, name: str, lost_as: str
) -> Side:
    """A side whose workers run the code of `tree`. links: a folder that is made for it."""
    target = selected.target
    setting = Setting(
        kind=target.kind,
        ordinal=target.ordinal,
        target=asdict(target),
        default_mhz=selected.device.sm_clock_mhz,
        budget_bytes=selected.memory_budget_bytes // 2,  # both sides are there at once
        seed=request.seed,
        timer=usual_timer(selected),
        kernels=[str(path) for path in _kernels(request, tree)],
    )
    cores = target.multiprocessors if target.kind == "cpu" else None
    environ = worker_environ(cores)
    links.mkdir()
    (links / "membound").symlink_to(tree)  # the package is the tree, whatever its folder is called
    paths = [str(links), *filter(None, [environ.get("PYTHONPATH")])]
    environ["PYTHONPATH"] = os.pathsep.join(paths)
    return Side(name, tree.resolve(), environ, setting, lost_as)


def _kernels(request: Comparing, tree: Path) -> Iterator[Path]:
    """Folders of operations: those that are part of the checkout are each revision's own."""
    root = request.root.resolve()
    for path in request.kernels:
        whole = path.resolve()
        mapped = tree / whole.relative_to(root) if whole.is_relative_to(root) else whole
        if mapped.exists():
            yield mapped


def _state(root: Path) -> str:
    now = revision(root)
    if now.commit is None:
        return f"of an unknown commit ({now.reason})"
    changes = "with uncommitted changes" if now.dirty else "with no change to what is measured"
    return f"{changes} since commit {now.commit[:7]}"
