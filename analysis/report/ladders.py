"""Kernel ladders: the same kernel step by step, and what each step bought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from statistics import median

from ..bandwidth import Achieved
from ..figures.bars import bars
from ..figures.figure import Figure
from ..tables import DASH, Table, number, percent, short
from .bandwidths import MOST_FIGURES, bar, headed, packed, site, stems
from .section import Folded, Part, Section
from .told import DOUBTFUL, SHOWN, Told, layers, plural

DEFAULT = "default"
"""What the last step is called, which has no name of its own."""


@dataclass(frozen=True)
class Step:
    """gain: times as fast as the step before it that has a figure; None where one of them has none.

    over_first: the same of the first step that has a figure.
    """

    row: Achieved
    gain: float | None
    over_first: float | None

    @property
    def name(self) -> str:
        return self.row.variant or DEFAULT


def ladders(all_told: Sequence[Told]) -> Section:
    """Every ladder of which at least two steps were measured, at one site each."""
    parts: list[Part] = []
    for told, stem in stems(all_told):
        found = [
            climbed(some)
            for implementation in dict.fromkeys(row.implementation for row in told.rows)
            for some in layers(told.rows, partial(_of_ladder, implementation)).values()
            if len({row.ladder_step for row in some}) > 1
        ]
        if not found:
            continue
        parts += headed(all_told, told)
        for page, some_steps in enumerate(islice(packed(found), MOST_FIGURES // 2), 1):
            parts.append(_figure(some_steps, f"{stem}ladders-{page}"))
        parts.append(Folded(_table(found)))
    return Section("Kernel ladders: the same kernel, step by step", parts)


def _of_ladder(implementation: str, row: Achieved) -> bool:
    return row.implementation == implementation and row.ladder_step is not None


def climbed(rows: Sequence[Achieved]) -> list[Step]:
    """The steps of one ladder in their order, each with what it gained."""
    steps: list[Step] = []
    rates: list[float] = []
    for row in sorted(rows, key=lambda row: row.ladder_step or 0):
        rate = row.gb_per_s if row.verdict in (*SHOWN, *DOUBTFUL) else None
        gains = (rate / rates[-1], rate / rates[0]) if rate and rates else (None, None)
        steps.append(Step(row, *gains))
        rates += [rate] if rate else []
    return steps


def _figure(ladders: Sequence[Sequence[Step]], name: str) -> Figure:
    drawn = [
        replace(
            bar(step.row, f"{_kernel(step.row)}  {site(step.row)}", step.name),
            beside="" if step.gain is None else f"{number(step.gain)}x",
        )
        for steps in ladders
        for step in steps
    ]
    labels = list(dict.fromkeys(one.label for one in drawn))
    return Figure(
        name,
        "Kernel ladders",
        f"GB/s of every step of {plural(len(ladders), 'kernel')}, from the simplest to the default "
        "form; the figure beside a bar is how many times as fast as the step before it, the tick "
        "what copies reached with the same share of reads.",
        _concluded(ladders),
        lambda: bars(drawn, "GB/s (1e9 bytes per second)", labels=labels),
    )


def _kernel(row: Achieved) -> str:
    return f"{row.operation} {short(row.direction)} {row.implementation}"


def _concluded(ladders: Sequence[Sequence[Step]]) -> str:
    gained = [step for steps in ladders for step in steps if step.gain is not None]
    if not gained:
        return "No two steps of a kernel have a figure."
    whole = [steps[-1].over_first for steps in ladders if steps[-1].over_first is not None]
    most = max(gained, key=lambda step: step.gain or 0.0)
    nothing = sum((step.gain or 0.0) < 1.0 for step in gained)
    climb = f"From the first step to the last is {number(median(whole))}x at the median. "
    return (
        f"{climb if whole else ''}One step bought most in {_kernel(most.row)}: {most.name}, "
        f"{number(most.gain)}x; {nothing} of {plural(len(gained), 'step')} made a kernel slower."
    )


def _table(ladders: Sequence[Sequence[Step]]) -> Table:
    cells = [
        [_kernel(step.row), str(step.row.ladder_step), step.name, short(step.row.dtype),
         step.row.shape, step.row.cache, number(step.row.gb_per_s), _times(step.gain),
         _times(step.over_first), percent(step.row.percent_of_ceiling), step.row.verdict]
        for steps in ladders
        for step in steps
    ]  # fmt: skip
    columns = ["kernel", "step", "name", "type", "shape", "cache", "GB/s", "gain", "over the first",
               "% of ceiling", "verdict"]  # fmt: skip
    figures = frozenset(["step", "GB/s", "gain", "over the first", "% of ceiling"])
    return Table("Steps of kernel ladders", columns, cells, figures)


def _times(gain: float | None) -> str:
    return DASH if gain is None else f"{number(gain)}x"
