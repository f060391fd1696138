"""Rows of max-pooling windows on the host: maxima and where they lie, 16 windows at a time."""

from __future__ import annotations

from math import inf
from typing import Any

from .cpu import inlined
from .cpu_images import evens, gather_inside, load_inside, odds, outside_left, shifted
from .cpu_lanes import LANES, load, store_some
from .cpu_math import anywhere, below, either, either_nan, splat, splat_int, where, zeros
from .cpu_pool import of_windows


@inlined
def _strided(x: Any, row: int, column: int, stride: int, width: int) -> Any:
    """Every `stride`-th of the columns from `column` on, -inf where outside the row."""
    if stride == 1:
        return load_inside(x, row, column, width, True)
    if stride == 2:
        return evens(
            load_inside(x, row, column, width, True),
            load_inside(x, row, column + LANES, width, True),
        )
    return gather_inside(x, row, column, stride, width, True)


@inlined
def _tall(
    x: Any, first: int, column: int, width: int, begin: int, end: int, kernel: int
) -> tuple[Any, Any, Any]:
    """Maximum of 16 columns over the rows `begin` to `end` of the windows, which row it is, sums.

    `first` is the element at which row 0 of the windows starts. Rows are counted in `kernel`s; the
    first of equals wins. The sums are NaN if anything is; outside the image there is -inf.
    """
    inside = column + LANES <= width
    row = first + begin * width
    top = load(x, row + column) if inside else load_inside(x, row, column, width, True)
    place, sums = splat(begin * kernel), top
    for r in range(begin + 1, end):
        row = first + r * width
        value = load(x, row + column) if inside else load_inside(x, row, column, width, True)
        larger, sums = below(top, value), sums + value
        top, place = where(larger, value, top), where(larger, splat(r * kernel), place)
    return top, place, sums


@inlined
def _pool(tops: Any, rows: Any, i: int, kernel: int, stride: int, room: int) -> tuple[Any, Any]:
    """Maximum and its place in 16 windows, the first of which starts at column `i` of `tops`.

    Of columns with equal maxima the one wins whose row comes first, then whose column does.
    """
    best = of_windows(tops, i, 0, stride, room)
    for c in range(1, kernel):
        value = of_windows(tops, i, c, stride, room)
        best = where(below(best, value), value, best)
    place = splat(kernel * kernel)
    for c in range(kernel):
        lost = below(of_windows(tops, i, c, stride, room), best)
        here = where(lost, splat(kernel * kernel), of_windows(rows, i, c, stride, room) + splat(c))
        place = where(below(here, place), here, place)
    return best, place


@inlined
def _row_of_windows(
    x: Any,
    first: int,
    width: int,
    begin: int,
    end: int,
    settings: tuple[int, int, int],
    out: tuple[Any, Any, int, int],
    across: tuple[Any, Any, int],
) -> bool:
    """A row of windows by way of buffers. Returns whether there may be a NaN.

    `out`: where values and places go, from which element on, and how many there are. `across`: a
    row of maxima, one of their rows, and their length.
    """
    kernel, stride, padding = settings
    values, places, into, out_w = out
    tops, rows, room = across
    total = zeros()
    for block in range(0, width, LANES):
        column = min(block, max(0, width - LANES))  # the last may overlap the one before
        top, place, sums = _tall(x, first, column, width, begin, end, kernel)
        total = total + sums  # by rows first: one long chain of additions would be waited for
        store_some(tops, padding + column, top, min(width, LANES))
        store_some(rows, padding + column, place, min(width, LANES))
    for block in range(0, out_w, LANES):
        j = min(block, max(0, out_w - LANES))
        best, place = _pool(tops, rows, j * stride, kernel, stride, room)
        store_some(values, into + j, best, LANES)
        store_some(places, into + j, place, LANES)
    nan: bool = anywhere(either_nan(total, total))
    return nan


@inlined
def _from(before: Any, now: Any, offset: int) -> Any:
    """Column `offset` of windows with a stride of two: `now` and `before` are (evens, odds)."""
    if offset == -2:
        return shifted(before[0], now[0])
    if offset == -1:
        return shifted(before[1], now[1])
    return now[0] if offset == 0 else now[1]


@inlined
def _row_of_pairs(
    x: Any,
    first: int,
    width: int,
    begin: int,
    end: int,
    settings: tuple[int, int, int],
    out: tuple[Any, Any, int, int],
) -> bool:
    """As `_row_of_windows`, in registers: two columns a window, and one to the right at most."""
    kernel, _, padding = settings
    values, places, into, out_w = out
    total, nowhere = zeros(), splat(kernel * kernel)
    top_before, place_before = (splat(-inf), splat(-inf)), (nowhere, nowhere)
    for block in range(0, out_w, LANES):
        low, low_place, low_sums = _tall(x, first, 2 * block, width, begin, end, kernel)
        high, high_place, high_sums = _tall(x, first, 2 * block + LANES, width, begin, end, kernel)
        total = total + low_sums + high_sums
        tops = evens(low, high), odds(low, high)
        rows = evens(low_place, high_place), odds(low_place, high_place)
        best = _from(top_before, tops, -padding)
        for c in range(1, kernel):
            value = _from(top_before, tops, c - padding)
            best = where(below(best, value), value, best)
        place = nowhere
        for c in range(kernel):
            lost = below(_from(top_before, tops, c - padding), best)
            here = _from(place_before, rows, c - padding) + splat(c)
            here = where(lost, nowhere, here)
            place = where(below(here, place), here, place)
        store_some(values, into + block, best, LANES)
        store_some(places, into + block, place, LANES)
        top_before, place_before = tops, rows
    nan: bool = anywhere(either_nan(total, total))
    return nan


@inlined
def one_row(
    x: Any,
    first: int,
    width: int,
    begin: int,
    end: int,
    settings: tuple[int, int, int],
    out: tuple[Any, Any, int, int],
    across: tuple[Any, Any, int],
) -> bool:
    """A row of windows, their rows `begin` to `end` being inside the image."""
    void: bool
    if settings[1] == 2 and settings[0] - settings[2] <= 2:
        void = _row_of_pairs(x, first, width, begin, end, settings, out)
    else:
        void = _row_of_windows(x, first, width, begin, end, settings, out, across)
    return void


@inlined
def pool_with_nan(
    x: Any,
    plane: int,
    top: int,
    column: int,
    height: int,
    width: int,
    kernel: int,
    stride: int,
) -> tuple[Any, Any]:
    """As `_pool`, of the image itself: the last NaN of a window wins, as in PyTorch."""
    first, last = max(0, -top), min(kernel, height - top)
    best, place = splat(-inf), splat_int(first * kernel) + outside_left(column, stride)
    for r in range(first, last):
        for c in range(kernel):
            value = _strided(x, plane + (top + r) * width, column + c, stride, width)
            wins = either(below(best, value), either_nan(value, value))
            best = where(wins, value, best)
            place = where(wins, splat_int(r * kernel + c), place)
    return best, place
