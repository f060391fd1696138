"""Implementations head to head: for every layer, how much of the fastest each one reaches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..bandwidth import Achieved
from ..figures.figure import Figure
from ..figures.grid import Cell, grid
from ..tables import Table, number, short
from .bandwidths import MOST_FIGURES, headed, stems
from .section import Folded, Part, Section
from .told import Told, layers, plural

_MOST_ROWS = 40
_NOT_RUN = "not part of the run"


def versus(all_told: Sequence[Told]) -> Section:
    """A grid of layers and implementations, where at least two of these were ranked."""
    parts: list[Part] = []
    for told, stem in stems(all_told):
        chosen = {
            key: some
            for key, some in layers(told.rows).items()
            if sum(row.ranked for row in some) > 1
        }
        if not chosen:
            continue
        forms = list(dict.fromkeys(row.form for some in chosen.values() for row in some))
        keys = list(chosen)
        pages = [keys[start : start + _MOST_ROWS] for start in range(0, len(keys), _MOST_ROWS)]
        parts += headed(all_told, told)
        for page, some_keys in enumerate(pages[: MOST_FIGURES // 2], 1):
            part = "" if len(pages) == 1 else f" ({page} of {len(pages)})"
            groups = [chosen[key] for key in some_keys]
            parts.append(_figure(groups, forms, f"{stem}head-to-head-{page}", part))
        parts.append(Folded(_table(list(chosen.values()), forms)))
    return Section("Implementations head to head", parts)


def _figure(
    groups: Sequence[Sequence[Achieved]], forms: Sequence[str], name: str, part: str
) -> Figure:
    cells = [_cell(group, form) for group in groups for form in forms]
    holes = sum(cell.part is None for cell in cells)
    first = Counter(_fastest(group).form for group in groups)
    won = ", ".join(f"{form} in {count}" for form, count in first.most_common())
    return Figure(
        name,
        f"Implementations head to head{part}",
        f"Time of the fastest over the time of each implementation, for "
        f"{plural(len(groups), 'layer')}: 1.00 is the fastest and 0.50 takes twice as long; words "
        "are the reason where there is no figure to compare, a dash that it was not run.",
        f"Fastest: {won} of {plural(len(groups), 'layer')}"
        + (f"; {plural(holes, 'hole')} in all." if holes else ", without a hole."),
        lambda: grid(cells),
    )


def _fastest(group: Sequence[Achieved]) -> Achieved:
    return max((row for row in group if row.ranked), key=lambda row: row.gb_per_s or 0.0)


def _cell(group: Sequence[Achieved], form: str) -> Cell:
    top = _fastest(group)
    layer = f"{top.operation} {short(top.direction)}"
    row = next((row for row in group if row.form == form), None)
    if row is None:
        return Cell(layer, form, None, "–", f"{layer} {form}: {_NOT_RUN}")
    if not row.ranked:
        return Cell(layer, form, None, row.verdict, f"{row.case}: {row.verdict}, {row.why}")
    part = (row.gb_per_s or 0.0) / (top.gb_per_s or 1.0)
    return Cell(layer, form, part, f"{part:.2f}", f"{row.case}: {number(row.gb_per_s)} GB/s")


def _table(groups: Sequence[Sequence[Achieved]], forms: Sequence[str]) -> Table:
    cells = []
    for group in groups:
        top = _fastest(group)
        figures = [_cell(group, form).said for form in forms]
        cells.append([top.operation, short(top.direction), short(top.dtype), top.shape, *figures])
    columns = ["operation", "dir", "type", "shape", *forms]
    return Table("Part of the fastest", columns, cells, frozenset(forms))
