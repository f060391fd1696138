"""The copy family in Numba CUDA: flat streams, and rows summed for `read`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends.numba_assembly import device
from ..backends.numba_elementwise import stream
from ..backends.numba_rows import row_sums
from ..spec import Prepared, Spec
from .stream import FACTOR, FILL_VALUE

_FACTOR = np.float32(FACTOR)


@device
def same(x: Any) -> Any:
    return x


@device
def _scaled(x: Any) -> Any:
    return x * _FACTOR


@device
def added(a: Any, b: Any) -> Any:
    return a + b


@device
def _triad(a: Any, b: Any) -> Any:
    return a + b * _FACTOR


_FORMS = {
    "copy": same,
    "scale": _scaled,
    "add": added,
    "triad": _triad,
    "fill": np.float32(FILL_VALUE),
}


def prepare(direction: str, spec: Spec) -> Prepared:
    if spec.operation.name == "read":
        return row_sums(spec)
    return stream(spec, _FORMS[spec.operation.name])
