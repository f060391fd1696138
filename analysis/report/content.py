"""The sections of a report in the order they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..tables import Table, bandwidth_tables
from . import bandwidths, ladders, noise, ratios, sizes, versus
from .answer import answer
from .head import failures, head, judged, warnings
from .method import method
from .section import Bullets, Folded, Part, Section
from .told import Told

_WHERE_MEASURED: Sequence[Callable[[Sequence[Told]], Section]] = (
    sizes.sweeps,
    sizes.roofline,
    ratios.types,
    ratios.directions,
    versus.versus,
    ladders.ladders,
    bandwidths.devices,
    noise.noise,
)
"""Sections that are there where a run has the data."""


def sections(all_told: Sequence[Told], beside: Path | None) -> list[Section]:
    """The answer of each run, then what all of them say, then how it was measured."""
    made = [_answer(told) for told in all_told]
    made += [_bandwidth(all_told), ratios.fusion(all_told)]
    made += [section for make in _WHERE_MEASURED if (section := make(all_told)).parts]
    return [*made, method(all_told, beside)]


def _answer(told: Told) -> Section:
    first, *rest = head(told.run, told.found, told.moved)
    parts: list[Part] = [Bullets(answer(told))] if told.rows else []
    parts.append(Bullets(rest))
    notes = warnings(told)
    if notes:
        parts.append(Table("Warnings", [], [], notes=notes))
    parts += [Folded(table) for table in (judged(told.rows), failures(told.rows)) if table]
    return Section(first, parts)


def _bandwidth(all_told: Sequence[Told]) -> Section:
    parts: list[Part] = []
    for told, stem in bandwidths.stems(all_told):
        parts += bandwidths.headed(all_told, told)
        most = max(2, bandwidths.MOST_FIGURES // len(all_told))
        parts += bandwidths.bandwidth_figures(told, stem, most)
        parts += bandwidth_tables(told.rows, told.moved)
        if not told.rows:
            parts.append("No case was measured.")
    return Section("Bandwidth by operation and implementation", parts)
