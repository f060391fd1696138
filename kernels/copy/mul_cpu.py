"""Product of two arrays on the host."""

from __future__ import annotations

from typing import Any

from ..backends.cpu import inlined
from ..backends.cpu import refuses as refuses
from ..backends.cpu_loops import prepare_elementwise
from ..spec import Prepared, Spec

Lanes = Any


@inlined
def _product(a: Lanes, b: Lanes) -> Lanes:
    return a * b


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_elementwise(spec, _product)
