"""The ceilings in Triton: the streams of the copy family at each read share."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl  # noqa: F401 - a kernel's module must name it

from ..backends.triton_elementwise import stream
from ..backends.triton_rows import row_sums
from ..spec import Prepared, Spec
from .stream import FILL_VALUE


@triton.jit
def _one(a):
    return a


@triton.jit
def _two(a, b):
    return a + b


@triton.jit
def _three(a, b, c):
    return a + b + c


def prepare(direction: str, spec: Spec) -> Prepared:
    if spec.operation.name == "mix_1r0w":
        return row_sums(spec)
    return stream(spec, (FILL_VALUE, _one, _two, _three)[len(spec.io.reads)])
