"""What `ab` and its two workers say to each other, one JSON message a line.

A worker greets, is told what to measure on, lists its cases, and then answers requests: open a
case, sample it, close it. It is one revision's code that speaks to another's: PROTOCOL changes with
anything below, and with what `Setting` and `Selection` need.
"""

from __future__ import annotations

import msgspec

from .presets import Selection
from .protocol import Choice, Poisoned, Setting

PROTOCOL = 1


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first thing a worker says. root: the tree that its code is from."""

    protocol: int
    root: str


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    setting: Setting
    selection: Selection


class Known(msgspec.Struct, frozen=True):
    """A case as one revision states it. skip: why it cannot run here, None where it can."""

    case: str
    bytes_read: int
    bytes_written: int
    source_hash: str
    skip: str | None


class Listed(msgspec.Struct, frozen=True, tag="listed"):
    cases: list[Known]


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Prepare and verify a case, with the choice made before or None to make it now."""

    case: str
    choice: Choice | None


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    choice: Choice
    launch_overhead: float | None
    tick: float
    source_hash: str


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """Take samples for about so many seconds, of half of the sets of buffers at least."""

    seconds: float


class Sampled(msgspec.Struct, frozen=True, tag="sampled"):
    seconds: list[float]
    throttled: bool | None


class Close(msgspec.Struct, frozen=True, tag="close"):
    """Verify the open case again, and give its memory back."""


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    pass


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The open case is of no use: a status and reason as a record has them. It is closed."""

    status: str
    reason: str


Request = Open | Sample | Close
Answer = Hello | Listed | Opened | Sampled | Closed | Failed | Poisoned
