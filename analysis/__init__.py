"""What the measurements mean: reads runs, imports neither kernels nor bench."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .load import load

__all__ = ["load"]


def __getattr__(name: str) -> object:
    # Lazy, so that importing the package does not import pandas.
    if name == "load":
        from .load import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
