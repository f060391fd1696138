"""Pooling of NCHW images on the host: a buffer of rows, which leaves in whole lines."""

from __future__ import annotations

from typing import Any

from .cpu import inlined
from .cpu_images import evens, gather_inside, odds
from .cpu_lanes import LANES, PAIR, load, prefetch, store, store_some, to_line
from .cpu_loops import AHEAD

BUFFER_ELEMENTS = 4096  # of dx or y put together before they leave: they stay in the L1 cache


@inlined
def leave(buffer: Any, y: Any, start: int, done: int, ready: int) -> int:
    """Move what makes whole lines of y out of the first `ready` elements of the buffer.

    Element 0 of the buffer belongs to element `start` of y; `done` elements have left before.
    Returns how many have now. A little at a time, so that memory takes it while others are made.
    """
    if done == 0:
        head = to_line(y, start)
        if ready < head:
            return 0
        leave_some(buffer, y, start, 0, head)
        done = head
    while done + 2 * PAIR <= ready:  # whole lines, of bytes too: half a line costs as much
        for j in (done, done + PAIR):
            store(y, start + j, load(buffer, j), load(buffer, j + LANES))
        done += 2 * PAIR
    return done


@inlined
def leave_some(buffer: Any, y: Any, start: int, j: int, count: int) -> None:
    while count > 0:
        store_some(y, start + j, load(buffer, j), count)
        j, count = j + LANES, count - LANES


@inlined
def of_windows(buffer: Any, i: int, c: int, stride: int, room: int) -> Any:
    """Column `c` of 16 windows, the first of which starts at element `i` of a buffer.

    Two neighbours share their loads.
    """
    if stride == 1:
        return load(buffer, i + c)
    if stride == 2:
        if c % 2 == 0:
            return evens(load(buffer, i + c), load(buffer, i + c + LANES))
        return odds(load(buffer, i + c - 1), load(buffer, i + c - 1 + LANES))
    return gather_inside(buffer, 0, i + c, stride, room, True)


@inlined
def ahead(x: Any, i: int, elements: int) -> None:
    """Ask for what will be read `AHEAD` elements from now on."""
    for k in range(0, elements, LANES):
        prefetch(x, i + AHEAD + k)
