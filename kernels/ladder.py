"""Kernel ladders: the same kernel step by step, so that what each technique buys can be measured.

An implementation module states its ladders beside `VARIANTS`:

    LADDERS = {"copy": Ladder("forward", ("naive", "vector", "unrolled"))}

A step is a named variant, right and verified like any other form, measured where it is asked for
and by the full preset. The default form is the step behind the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .operation import DirectionName


@dataclass(frozen=True)
class Ladder:
    """Variants that are steps of one direction of an operation, the simplest first."""

    direction: DirectionName
    steps: tuple[str, ...]

    def step(self, direction: str, variant: str) -> int | None:
        """Place of a variant from 1 on, "" being the last; None where it is no step."""
        if direction != self.direction or variant not in (*self.steps, ""):
            return None
        return (*self.steps, "").index(variant) + 1


Ladders = Mapping[str, Ladder]
"""By operation, where a file implements several."""
