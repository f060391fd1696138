"""What a user asks for: presets, selections, and the error for a name that selects nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from ..results.record import Cache


class UnknownName(ValueError):
    """A name that selects nothing; the message lists the nearest valid ones."""

    exit_code = 2


@dataclass(frozen=True)
class Preset:
    """What is measured when the user names nothing."""

    name: str
    tiers: tuple[int, ...]
    kinds: tuple[str, ...]
    all_dtypes: bool
    caches: tuple[Cache, ...]
    processes: int
    compile_all: bool
    compile_fused: bool
    variants: bool
    seconds_per_case: float
    time_limit: float | None = None


PRESETS = {
    "quick": Preset("quick", (1,), ("scaled",), False, ("cold",), 2, False, False, False, 0.4),
    "standard": Preset(
        "standard",
        (1, 2, 3),
        ("scaled", "ragged", "layer"),
        False,
        ("cold", "steady"),
        3,
        False,
        True,
        False,
        1.0,
        480.0,
    ),
    "full": Preset(
        "full",
        (1, 2, 3),
        ("scaled", "ragged", "layer"),
        True,
        ("cold", "steady"),
        5,
        True,
        True,
        True,
        2.0,
    ),
}


@dataclass(frozen=True)
class Selection:
    """What the user asked for; empty means the preset decides."""

    preset: str = "quick"
    operations: tuple[str, ...] = ()
    directions: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    caches: tuple[Cache, ...] = ()
    ceilings: bool = True  # measure the plain streams that everything is held to as well


def preset_named(name: str) -> Preset:
    if name not in PRESETS:
        raise UnknownName(unknown("preset", name, PRESETS))
    return PRESETS[name]


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:8]
    return f"unknown {what} {name!r}; nearest: {', '.join(near)}"
