"""Product of two arrays in Numba CUDA."""

from __future__ import annotations

from typing import Any

from ..backends.numba_assembly import device
from ..backends.numba_elementwise import stream
from ..spec import Prepared, Spec


@device
def _product(a: Any, b: Any) -> Any:
    return a * b


def prepare(direction: str, spec: Spec) -> Prepared:
    return stream(spec, _product)
