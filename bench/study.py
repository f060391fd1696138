"""How often a comparison is wrong, measured on this machine with code whose truth is known.

    python -m membound.bench.study [--runs N] [--processes P] [--matches M] [--out FOLDER]

The streams of `bench/slowed` run plain and truly moving 5 % and 10 % more. Stored runs: every run
is held to every other, like with like (nothing changed) and slowed against plain, by `compare` and,
on the same samples, by the rules others use. `ab`: the same pairs, alternating. What is in FOLDER
is used again, and only what it lacks is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec.structs import replace

from ..analysis.compare import compare
from ..analysis.rivals import RULES, Samples
from ..analysis.sequential import Sequential, Sides
from ..analysis.tables import Table, as_text
from ..kernels.discovery import discover
from ..results.reading import Run, find_runs, read_run
from ..results.record import Record
from ..results.store import StoreError
from .ab import Match
from .ab_side import TIME_LIMIT_SECONDS, Comparing, side_of
from .cases import plan
from .device.select import Selected, select
from .environment import ROOT
from .presets import Selection
from .records import MEMCPY
from .run import Request, measure
from .show import Progress

SLOWED = Path(__file__).parent / "slowed"
VARIANTS: Mapping[float, str] = {0.0: "", 0.05: "more5", 0.10: "more10"}
"""What the plain form is compared with, by how much more that moves."""
SELECTION = Selection(
    operations=("slowed",),
    implementations=("torch", *(f"torch:{variant}" for variant in VARIANTS.values() if variant)),
    ceilings=False,
)
OURS, AB = "compare", "ab"
MATCHES = "matches.jsonl"
_VERDICTS = ("slower", "faster", "same", "ambiguous")


@dataclass(frozen=True)
class Wanted:
    """How much is measured, and where it is kept."""

    out: Path
    runs: int = 10
    processes: int = 6
    matches: int = 3
    seconds_per_case: float = 0.4
    time_limit: float = TIME_LIMIT_SECONDS
    device: str | None = None
    block_seconds: float = Comparing.block_seconds
    rounds: int = Comparing.rounds


class Matched(msgspec.Struct, frozen=True, kw_only=True):
    """One case of one `ab`: `change` is the truth; seconds of both sides, by restart."""

    match: int
    case: str
    change: float
    base: list[float]
    current: list[float]
    tick: float
    seconds: float  # that the whole match took


@dataclass
class Tally:
    """Verdicts by who gave them, and by the truth; gates of unchanged code that failed."""

    verdicts: Counter[tuple[str, float, str]] = field(default_factory=Counter)
    gates: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def add(self, who: str, change: float, verdicts: Sequence[str]) -> None:
        self.verdicts.update((who, change, verdict) for verdict in verdicts)

    def gate(self, who: str, verdicts: Sequence[str]) -> None:
        self.gates[who] += 1
        self.failed[who] += "slower" in verdicts

    def share(self, who: str, change: float, verdict: str) -> float | None:
        """Of the cases with this truth, those with this verdict; None without any."""
        total = sum(self.verdicts[who, change, name] for name in _VERDICTS)
        return self.verdicts[who, change, verdict] / total if total else None


def collect(wanted: Wanted, say: Callable[[str], None]) -> tuple[list[Run], list[Matched]]:
    """What the folder holds, after measuring what it lacks."""
    runs = _stored(wanted)
    while len(runs) < wanted.runs:
        say(f"run {len(runs) + 1} of {wanted.runs}")
        with Progress() as progress:
            measure(_request(wanted), progress)
        runs = _stored(wanted)
    matches = _matches(wanted.out / MATCHES)
    for number in range(1 + max((m.match for m in matches), default=-1), wanted.matches):
        say(f"match {number + 1} of {wanted.matches}")
        played = _play(wanted, number, say)
        with (wanted.out / MATCHES).open("ab") as file:
            file.write(msgspec.json.Encoder().encode_lines(played))
        matches += played
    return runs[: wanted.runs], matches


def tally(runs: Sequence[Run], matches: Sequence[Matched]) -> Tally:
    """Every rule's verdict on every pair of runs and every match."""
    found = Tally()
    for base, current in permutations(runs, 2):
        for change, variant in VARIANTS.items():
            _tally_runs(found, change, _only(base, ""), _only(current, variant))
    for number in sorted({m.match for m in matches}):
        _tally_match(found, [m for m in matches if m.match == number])
    return found


def _tally_runs(found: Tally, change: float, base: Run, current: Run) -> None:
    judged = {OURS: [row.verdict for row in compare([base], [current]).rows]}
    one, other = _samples(base), _samples(current)
    for name, rule in RULES.items():
        judged[name] = [rule(one[case], other[case]) for case in one if case in other]
    for name, verdicts in judged.items():
        found.add(name, change, verdicts)
        if change == 0:
            found.gate(name, verdicts)


def _tally_match(found: Tally, matches: Sequence[Matched]) -> None:
    """Look at the match again as `ab` did."""
    judge = Sequential()
    most = max(len(m.base) for m in matches)
    verdicts: dict[str, str] = {}
    for restarts in (n for n in range(1, most + 1) if judge.due(n) or n == most):
        sides = {m.case: Sides(m.base[:restarts], m.current[:restarts], m.tick) for m in matches}
        rows = judge.judge(sides, last=restarts == most)
        verdicts = {row.case: row.verdict for row in rows}
    for m in matches:
        found.add(AB, m.change, [verdicts[m.case]])
    found.gate(AB, [verdicts[m.case] for m in matches if m.change == 0])


def tables(found: Tally, matches: Sequence[Matched]) -> list[Table]:
    """Shares by rule and truth, and of failed gates."""
    who = list(dict.fromkeys(name for name, _, _ in found.verdicts))
    rows = []
    for change in VARIANTS:
        for name in who:
            total = sum(found.verdicts[name, change, v] for v in _VERDICTS)
            shares = [_percent(found.share(name, change, verdict)) for verdict in _VERDICTS]
            rows.append([f"{change:+.0%}", name, str(total), *shares])
    gates = [[name, str(found.gates[name]), str(found.failed[name])] for name in who]
    right = frozenset(["cases", *_VERDICTS, "gates", "failed"])
    took = sorted({(m.match, m.seconds) for m in matches})
    notes = [f"match {match + 1} took {seconds:.0f} s" for match, seconds in took]
    return [
        Table(
            "Verdicts by true change of the bytes",
            ["bytes", "rule", "cases", *_VERDICTS],
            rows,
            right,
            notes,
        ),
        Table("Gates of unchanged code", ["rule", "gates", "failed"], gates, right),
    ]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _request(wanted: Wanted) -> Request:
    return Request(
        selection=SELECTION,
        device=wanted.device,
        processes=wanted.processes,
        out=wanted.out,
        seconds_per_case=wanted.seconds_per_case,
        kernels=(SLOWED,),
        command=("membound-study",),
    )


def _stored(wanted: Wanted) -> list[Run]:
    """Finished runs in the folder that have as many processes as are wanted."""
    try:
        runs = [read_run(path) for path in find_runs([wanted.out])]
    except StoreError:
        return []
    return [
        run
        for run in runs
        if run.environment is not None
        and run.environment.finished_at is not None
        and run.environment.processes == wanted.processes
    ]


def _only(run: Run, variant: str) -> Run:
    """One variant of the streams under the plain form's name, and the reference copies."""
    streams = [_plainly(r) for r in run.records if r.family == "slowed" and r.variant == variant]
    copies = [r for r in run.records if r.implementation == MEMCPY]
    return Run(run.path, run.environment, streams + copies)


def _plainly(record: Record) -> Record:
    named = record.case.replace(f":{record.variant}/", "/") if record.variant else record.case
    return replace(record, case=named, variant="")


def _samples(run: Run) -> dict[str, Samples]:
    found: dict[str, list[list[float]]] = {}
    for record in run.records:
        if record.status == "ok" and record.implementation != MEMCPY:
            found.setdefault(record.case, []).append(record.seconds)
    return dict(found)


def _matches(path: Path) -> list[Matched]:
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(Matched)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]


def _play(wanted: Wanted, number: int, say: Callable[[str], None]) -> list[Matched]:
    """One match of all pairs, between two workers of this very tree."""
    selected = select(wanted.device)
    pairs = dict(_pairs(selected))
    request = Comparing(
        "",
        SELECTION,
        kernels=(SLOWED,),
        time_limit=wanted.time_limit,
        block_seconds=wanted.block_seconds,
        rounds=wanted.rounds,
    )
    with TemporaryDirectory(prefix="membound-study-") as folder:
        a, b = (
            side_of(request, selected, ROOT, Path(folder) / name, name, "missing")
            for name in ("a", "b")
        )
        try:
            match = Match(
                request,
                Sequential(),
                a,
                b,
                say,
                {n: (one, other) for n, (_, one, other) in pairs.items()},
            )
            match.play()
        finally:
            a.end()
            b.end()
    return [
        Matched(
            match=number,
            case=case,
            change=pairs[case][0],
            base=list(sides.base),
            current=list(sides.current),
            tick=sides.tick,
            seconds=match.seconds,
        )
        for case, sides in match.sides().items()
        if sides.base
    ]


def _pairs(selected: Selected) -> Iterator[tuple[str, tuple[float, str, str]]]:
    """Name, truth, case of A and case of B."""
    groups = plan(discover([SLOWED]), SELECTION, selected.target, selected.memory_budget_bytes // 2)
    for group in groups:
        for cache in group.caches:
            plain = group.case("torch", cache)
            for change, variant in VARIANTS.items():
                other = group.case(f"torch:{variant}" if variant else "torch", cache)
                yield f"{plain} {change:+.0%}", (change, plain, other)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m membound.bench.study", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, default=10, help="stored runs of identical code")
    parser.add_argument("--processes", type=int, default=6, help="fresh processes of a run")
    parser.add_argument("--matches", type=int, default=3, help="times that ab is played")
    parser.add_argument("--out", type=Path, default=Path("build/study"), help="where it is kept")
    parser.add_argument("--device", help="cuda, cuda:1 or cpu")
    given = parser.parse_args(arguments)
    wanted = Wanted(given.out, given.runs, given.processes, given.matches, device=given.device)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        wanted.out.mkdir(parents=True, exist_ok=True)
        runs, matches = collect(wanted, say)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from what is stored", file=sys.stderr)
        return 130
    found = tally(runs, matches)
    print("\n".join(as_text(table) for table in tables(found, matches)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
