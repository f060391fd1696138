"""SGD in Triton, with and without momentum."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton_elementwise import stream
from ..spec import Prepared, Spec
from .sgd import MOMENTUM, RATE

_RATE, _MOMENTUM = tl.constexpr(RATE), tl.constexpr(MOMENTUM)


@triton.jit
def _step(p, direction):
    return p - direction * _RATE


@triton.jit
def _moved(g, b):
    return b * _MOMENTUM + g


@triton.jit
def _with_momentum(p, g, b):
    new_b = _moved(g, b)
    return _step(p, new_b), new_b


_FUNCTIONS = {"sgd": _step, "momentum": _moved, "sgd_momentum": _with_momentum}


def prepare(direction: str, spec: Spec) -> Prepared:
    return stream(spec, _FUNCTIONS[spec.operation.name])
