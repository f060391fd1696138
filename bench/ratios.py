"""How near the `cpu` kernels come to what this machine can do, as ratios measured side by side.

    python -m membound.bench.ratios [--quick] [--json] [OPERATION...]

Contestants are the `cpu` kernel, the copies whose read shares enclose its own, eager PyTorch (into
given outputs where torch has `out=`; * where it allocates them, as people write it), torch.compile
as `out.copy_(f(x))`, and for a fused operation its chain. A ratio is the median over the passes
(side_by_side.py says how these are taken). At the end: the geometric means over eager and over
compiled PyTorch, and every case that is slower than 0.9 of a rival.

Exits 1 where a goal is missed, 2 where an operation is unknown, 4 where there is nothing to run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import geometric_mean, median

from ..kernels import chain
from ..kernels.discovery import Catalogue, discover
from ..kernels.operation import DIRECTIONS, DirectionName, Operation
from ..kernels.spec import CannotPrepare
from ..kernels.target import MIB
from .cases import CEILINGS
from .side_by_side import SideBySide, Taken

GOAL_COPY = 1.2  # times as fast as torch's copy_
GOAL_CEILING = 0.80  # of the copies at the operation's read share
GOAL_GAIN = 0.9  # of the gain that the bytes of the chain predict
LEAST = 0.9  # times as fast as eager and compiled PyTorch, in every case


@dataclass(frozen=True)
class Row:
    """One operation and direction. Ratios are above 1 where `cpu` is the faster; None: no rival."""

    operation: str
    direction: str
    gb_per_s: float
    ceiling_share: float
    to_eager: float | None
    eager_allocates: bool | None
    to_compiled: float | None
    to_unfused: float | None
    predicted_gain: float | None
    goal: str
    met: bool

    @property
    def case(self) -> str:
        return f"{self.operation} {self.direction}"


def judged(taken: Taken, predicted_gain: float | None) -> Row:
    """What the times of one operation and direction come to."""
    own, spec = taken.seconds["cpu"], taken.spec

    def ratio(rival: str) -> float | None:
        if rival not in taken.seconds:
            return None
        rivals = taken.seconds[rival]
        return median(theirs / ours for theirs, ours in zip(rivals, own, strict=True))

    eager = taken.contestants.get("torch")
    row = Row(
        operation=spec.operation.name,
        direction=spec.direction,
        gb_per_s=taken.contestants["cpu"].pass_bytes / median(own) / 1e9,
        ceiling_share=median(_ceiling_seconds(taken, i) / ours for i, ours in enumerate(own)),
        to_eager=ratio("torch"),
        eager_allocates=eager.allocates if eager else None,
        to_compiled=ratio("compile"),
        to_unfused=ratio("unfused"),
        predicted_gain=predicted_gain,
        goal="",
        met=False,
    )
    return _with_goal(row)


def predicted_gain(catalogue: Catalogue, taken: Taken) -> float | None:
    """Bytes of the chain over those of the fused operation; None where there is no chain."""
    spec = taken.spec
    for variant in spec.operation.chains:
        apart = chain.traffic(
            *(catalogue.operations, spec.operation, variant),
            *(spec.direction, spec.dims, spec.dtype),
        )
        return apart / spec.io.scheduled if apart else None
    return None


def _ceiling_seconds(taken: Taken, index: int) -> float:
    """Time the copies would have taken for the bytes of one pass, at the same read share.

    Between two shares the time per byte is interpolated: part of the bytes as the one, part as the
    other.
    """
    own = taken.contestants["cpu"]
    points = sorted(
        (c.read_share, taken.seconds[name][index] / c.pass_bytes)
        for name, c in taken.contestants.items()
        if name in CEILINGS
    )
    (low, slow), (high, shigh) = points[0], points[-1]
    weight = (own.read_share - low) / (high - low) if high > low else 0.0
    return own.pass_bytes * ((1 - weight) * slow + weight * shigh)


def _with_goal(row: Row) -> Row:
    goals: list[tuple[str, bool]] = []
    if row.operation == "copy":
        goals.append((f">= {GOAL_COPY} x copy_", (row.to_eager or 0) >= GOAL_COPY))
    else:
        goals.append((f">= {GOAL_CEILING} of ceiling", row.ceiling_share >= GOAL_CEILING))
    if row.to_unfused is not None and row.predicted_gain is not None:
        wanted = GOAL_GAIN * row.predicted_gain
        goals.append((f">= {wanted:.3f} x chain", row.to_unfused >= wanted))
    return replace(row, goal="; ".join(text for text, _ in goals), met=all(met for _, met in goals))


@dataclass(frozen=True)
class Rival:
    """A rival in every case: its name, the wanted geometric mean, and its ratio in a row."""

    name: str
    goal: float
    ratio: Callable[[Row], float | None]


RIVALS = (
    Rival("torch eager", 1.5, lambda row: row.to_eager),
    Rival("torch.compile, out.copy_(f(x))", 1.0, lambda row: row.to_compiled),
)


@dataclass(frozen=True)
class Outcome:
    """All cases beside one rival. below: those under `LEAST`, the worst first."""

    rival: Rival
    mean: float
    cases: int
    into_given: int
    below: Mapping[str, float]

    @property
    def met(self) -> bool:
        return self.mean >= self.rival.goal and not self.below

    def lines(self) -> Iterator[str]:
        given = f", {self.into_given} of them into given outputs" if self.into_given else ""
        yield (
            f"cpu over {self.rival.name}: {self.mean:.2f} in the geometric mean of {self.cases} "
            f"cases{given}; goal {self.rival.goal}"
        )
        if not self.below:
            yield f"  no case below {LEAST}"
        for case, ratio in self.below.items():
            yield f"  below {LEAST}: {case} {ratio:.2f}"


def outcomes(rows: Sequence[Row]) -> list[Outcome]:
    """Beside every rival that was measured."""
    found = []
    for rival in RIVALS:
        ratios = {row.case: ratio for row in rows if (ratio := rival.ratio(row)) is not None}
        if not ratios:
            continue
        below = sorted((ratio, case) for case, ratio in ratios.items() if ratio < LEAST)
        eager = rival is RIVALS[0]
        given = sum(eager and row.eager_allocates is False for row in rows)
        mean = geometric_mean(ratios.values())
        found.append(Outcome(rival, mean, len(ratios), given, {c: r for r, c in below}))
    return found


def _table(row: Row) -> str:
    def number(value: float | None) -> str:
        return f"{value:8.2f}" if value is not None else "       -"

    return (
        f"{row.operation:22} {row.direction:8} {row.gb_per_s:7.1f} {row.ceiling_share:8.2f} "
        f"{number(row.to_eager)}{'*' if row.eager_allocates else ' '}{number(row.to_compiled)} "
        f"{number(row.to_unfused)} {number(row.predicted_gain)}  "
        f"{'met ' if row.met else 'MISS'} {row.goal}"
    )


_HEADER = (
    "operation              direction  GB/s  ceiling  x torch  x compile x chain  predicted  goal"
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m membound.bench.ratios")
    parser.add_argument("operations", nargs="*", metavar="OPERATION")
    parser.add_argument(
        "--quick", action="store_true", help="half the bytes, few rounds, no compile"
    )
    parser.add_argument("--json", action="store_true", help="one array of objects")
    chosen = parser.parse_args(arguments)
    catalogue = discover()
    unknown = [name for name in chosen.operations if name not in catalogue.operations]
    if unknown:
        print(f"unknown operation {unknown[0]!r}; known: {', '.join(catalogue.operations)}")
        return 2
    say: Callable[[str], None] = (lambda text: None) if chosen.json else print
    total = (1024 if chosen.quick else 2048) * MIB
    bench = SideBySide(catalogue, total, 4 if chosen.quick else 10, not chosen.quick)
    say(_HEADER)
    rows = list(_measured(bench, _wanted(catalogue, chosen.operations), say))
    if chosen.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    if not rows:
        return 4
    found = outcomes(rows)
    for line in (line for outcome in found for line in outcome.lines()):
        say(line)
    met = [*(row.met for row in rows), *(one.met for one in found)]
    return 0 if all(met) else 1


def _wanted(
    catalogue: Catalogue, names: Sequence[str]
) -> Iterator[tuple[Operation, DirectionName]]:
    """Operations that were named, or else all that have a `cpu` kernel, in their directions."""
    for operation in catalogue.operations.values():
        ours = catalogue.default(operation.name, "cpu") is not None
        if operation.name in names if names else ours:
            yield from ((operation, way) for way in DIRECTIONS if operation.has(way))


def _measured(
    bench: SideBySide,
    wanted: Iterator[tuple[Operation, DirectionName]],
    say: Callable[[str], None],
) -> Iterator[Row]:
    for operation, direction in wanted:
        try:
            row = _row(bench, operation, direction)
        except CannotPrepare as reason:
            say(f"{operation.name:22} {direction:8} {reason}")
            continue
        say(_table(row))
        yield row


def _row(bench: SideBySide, operation: Operation, direction: DirectionName) -> Row:
    """By itself, so that what rivals allocated is gone before the next case."""
    taken = bench.measure(operation, direction)
    return judged(taken, predicted_gain(bench.catalogue, taken))


if __name__ == "__main__":
    sys.exit(main())
