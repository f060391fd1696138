"""The ceilings on the host: the same loops as the copy family, at every read share."""

from __future__ import annotations

from typing import Any

from ..backends.cpu import Function, inlined
from ..backends.cpu import refuses as refuses
from ..backends.cpu_loops import prepare_elementwise
from ..spec import Prepared, Spec
from .stream_cpu import added, filled, prepare_copy, prepare_row_sums

Lanes = Any


@inlined
def _sum_of_3(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    return (a + b) + c


_FUNCTIONS: dict[str, Function] = {
    "mix_3r1w": _sum_of_3,
    "mix_2r1w": added,
    "mix_0r1w": filled,
}


def prepare(direction: str, spec: Spec) -> Prepared:
    if spec.operation.name == "mix_1r0w":
        return prepare_row_sums(spec)
    if spec.operation.name == "mix_1r1w":
        return prepare_copy(spec)
    return prepare_elementwise(spec, _FUNCTIONS[spec.operation.name])
