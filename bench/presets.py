"""What a user asks for: presets, selections, and the error for a name that selects nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from ..results.record import Cache, Placement


class UnknownName(ValueError):
    """A name that selects nothing; the message lists the nearest valid ones."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What is measured when the user names nothing.

    own_kernels_only: only operations that have our kernel for this device (`cuda`, or `cpu`).
    compile_fused: torch.compile for what is fused; compile_all: for everything.
    variants: the steps of kernel ladders too.
    peers: kernels of other projects too, those that are installed.
    placements: memory that operands lie in, of the copy family, on a GPU.
    time_limit: seconds, None for no limit.
    """

    name: str
    tiers: tuple[int, ...]
    kinds: tuple[str, ...]
    caches: tuple[Cache, ...]
    processes: int
    seconds_per_case: float
    all_dtypes: bool = False
    own_kernels_only: bool = False
    compile_fused: bool = False
    compile_all: bool = False
    variants: bool = False
    peers: bool = False
    placements: tuple[Placement, ...] = ("device",)
    time_limit: float | None = None


PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
_EVERY_TIER = (1, 2, 3)
_EVERY_KIND = ("scaled", "ragged", "layer")

PRESETS = {
    "quick": Preset(
        name="quick",
        tiers=(1,),
        kinds=("scaled",),
        caches=("cold",),
        processes=2,
        seconds_per_case=0.1,
        own_kernels_only=True,
    ),
    "standard": Preset(
        name="standard",
        tiers=_EVERY_TIER,
        kinds=_EVERY_KIND,
        caches=("cold", "steady"),
        processes=3,
        seconds_per_case=1.0,
        compile_fused=True,
        peers=True,
        time_limit=480.0,
    ),
    "full": Preset(
        name="full",
        tiers=_EVERY_TIER,
        kinds=_EVERY_KIND,
        caches=("cold", "steady"),
        processes=5,
        seconds_per_case=2.0,
        all_dtypes=True,
        compile_fused=True,
        compile_all=True,
        variants=True,
        peers=True,
        placements=PLACEMENTS,
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
    placements: tuple[Placement, ...] = ()
    ceilings: bool = True  # measure the plain streams that everything is held to as well


def preset_named(name: str) -> Preset:
    if name not in PRESETS:
        raise UnknownName(unknown("preset", name, PRESETS))
    return PRESETS[name]


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:8]
    return f"unknown {what} {name!r}; nearest: {', '.join(near)}"
