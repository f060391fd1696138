"""Gradient accumulation on the host: the sum of an element of either type."""

from __future__ import annotations

from ..backends.cpu import refuses as refuses
from ..backends.cpu_loops import prepare_elementwise
from ..copy.stream_cpu import added
from ..spec import Prepared, Spec


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_elementwise(spec, added)
