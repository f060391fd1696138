"""What the measurements mean: reads runs, imports neither kernels nor bench."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .loading import load

__all__ = ["load"]


def __getattr__(name: str) -> object:
    # Lazy, so that importing the package does not import pandas.
    if name == "load":
        from .loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
