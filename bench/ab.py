"""Two revisions measured against each other, alternating: small changes on a noisy machine.

A is a revision that is checked out into a folder of its own, B the working tree as it is. A worker
of each holds the same inputs; for one case at a time they take samples in blocks A B B A (B A A B
after every other restart, so that neither is always the first to find its memory). Then both are
started afresh, because what memory a process gets differs more than its samples do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic

from ..analysis.compare import Comparison
from ..analysis.judge import DECIDED, Compared
from ..analysis.sequential import Sequential, Sides, hodges_lehmann
from ..analysis.verdict import LAUNCH_TIMES, TIMER_TICKS
from ..kernels.discovery import discover
from .ab_protocol import (
    Answer,
    Close,
    Failed,
    Known,
    Open,
    Opened,
    Request,
    Sample,
    Sampled,
)
from .ab_side import Comparing, Lost, Side, side_of
from .cases import plan
from .device.select import compute_processes, select
from .environment import revision
from .worktree import checked_out, commit_of


class SourcesChanged(Exception):
    """The working tree was edited while it was measured; the message says which case shows it."""

    exit_code = 2


class _Unusable(Exception):
    """Why a case cannot be compared: its verdict and reason, and whether B's result is wrong."""

    def __init__(self, verdict: str, reason: str, wrong: bool = False) -> None:
        super().__init__(reason)
        self.verdict, self.wrong = verdict, wrong


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
            except Lost as error:
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


def _state(root: Path) -> str:
    now = revision(root)
    if now.commit is None:
        return f"of an unknown commit ({now.reason})"
    changes = "with uncommitted changes" if now.dirty else "with no change to what is measured"
    return f"{changes} since commit {now.commit[:7]}"
