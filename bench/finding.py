"""One finding of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Line:
    """`remedy` says what to do where the level is not ok. fail: no run would work."""

    level: Level
    name: str
    text: str
    remedy: str | None = None
