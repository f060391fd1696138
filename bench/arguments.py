"""Texts of the command line that stand for more than a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..results.record import Cache, Placement

_CACHES: dict[str, Cache] = {"cold": "cold", "steady": "steady"}
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class BadArgument(ValueError):
    """An argument that cannot be read; the message says what would be right."""

    exit_code = 2


def several(text: str | None) -> tuple[str, ...]:
    """The words of "a,b"."""
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


def caches(text: str | None) -> tuple[Cache, ...]:
    """Cache states. Raises BadArgument."""
    for name in several(text):
        if name not in _CACHES:
            raise BadArgument(f"unknown cache state {name!r}; valid: {', '.join(_CACHES)}")
    return tuple(_CACHES[name] for name in several(text))


def placements(text: str | None) -> tuple[Placement, ...]:
    """Where operands lie. Raises BadArgument."""
    from .presets import PLACEMENTS

    for name in several(text):
        if name not in PLACEMENTS:
            raise BadArgument(f"unknown placement {name!r}; valid: {', '.join(PLACEMENTS)}")
    return tuple(known for known in PLACEMENTS if known in several(text))


def seconds(text: str | None) -> float | None:
    """Seconds of "90s", "10m", "1h" or a number. Raises BadArgument."""
    if text is None:
        return None
    unit = _UNITS.get(text[-1:])
    try:
        value = float(text[:-1] if unit else text) * (unit or 1.0)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e7:
        raise BadArgument(f"--time-limit {text!r} is not a duration; write 90s, 10m or 1h")
    return value


def architectures(text: str) -> tuple[str, ...]:
    """The architectures of "sm_90,sm_121", or every one of "all". Raises BadArgument."""
    from ..kernels.target import ARCHITECTURES

    if text == "all":
        return ARCHITECTURES
    for name in several(text) or [text]:  # none at all would find no fault
        if name not in ARCHITECTURES:
            raise BadArgument(
                f"unknown architecture {name!r}; valid: all, {', '.join(ARCHITECTURES)}"
            )
    return several(text)


def share(text: str) -> float:
    """0.03 of "3%" or "0.03". Raises BadArgument."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise BadArgument(f"--threshold {text!r} is not a share; write 3% or 0.03")
    return value
