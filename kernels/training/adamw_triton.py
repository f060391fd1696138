"""AdamW in Triton, whole and by its steps, with the numbers of adamw.py."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton_elementwise import stream
from ..spec import Prepared, Spec
from .adamw import numbers

_NUMBERS = numbers()
_DECAY, _BETA1, _REST1, _BETA2, _REST2, _RATE, _ROOT, _EPS = map(tl.constexpr, _NUMBERS)


@triton.jit
def decay(p):
    return p * _DECAY


@triton.jit
def first_moment(g, m):
    return m * _BETA1 + g * _REST1


@triton.jit
def second_moment(g, v):
    return v * _BETA2 + (g * g) * _REST2


@triton.jit
def step(p, m, v):
    return p - m * _RATE / (tl.sqrt(v) * _ROOT + _EPS)


@triton.jit
def _whole(p, g, m, v):
    new_m = first_moment(g, m)
    new_v = second_moment(g, v)
    return step(decay(p), new_m, new_v), new_m, new_v


_FUNCTIONS = {
    "adamw": _whole,
    "adamw_master": _whole,
    "adamw_decay": decay,
    "adamw_first_moment": first_moment,
    "adamw_second_moment": second_moment,
    "adamw_step": step,
}


def prepare(direction: str, spec: Spec) -> Prepared:
    return stream(spec, _FUNCTIONS[spec.operation.name])
