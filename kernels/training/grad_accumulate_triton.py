"""A bfloat16 gradient added to its float32 sum, in Triton."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl  # noqa: F401 - a kernel's module must name it

from ..backends.triton_elementwise import stream
from ..spec import Prepared, Spec


@triton.jit
def _sum(total, g):
    return total + g


def prepare(direction: str, spec: Spec) -> Prepared:
    return stream(spec, _sum)
