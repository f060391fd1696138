"""The copy family in Triton: flat streams, and rows summed for `read`."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton_elementwise import stream
from ..backends.triton_rows import row_sums
from ..spec import Prepared, Spec
from .stream import FACTOR, FILL_VALUE

_FACTOR = tl.constexpr(FACTOR)


@triton.jit
def _same(x):
    return x


@triton.jit
def _scaled(x):
    return x * _FACTOR


@triton.jit
def _sum(a, b):
    return a + b


@triton.jit
def _triad(a, b):
    return a + b * _FACTOR


_FORMS = {"copy": _same, "scale": _scaled, "add": _sum, "triad": _triad, "fill": FILL_VALUE}


def prepare(direction: str, spec: Spec) -> Prepared:
    if spec.operation.name == "read":
        return row_sums(spec)
    return stream(spec, _FORMS[spec.operation.name])
