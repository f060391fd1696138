"""Cross-entropy in Triton: a program per row, which it walks with a maximum and a sum per lane.

Smoothing needs the mean of the row: it is summed relative to the first logit, since logits far from
zero would leave nothing of a difference. The gradient beside the loss is a second walk.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton import Kernel, Plan, choose, power_of_two
from ..backends.triton_rows import CHUNK, put, store
from ..spec import Choice, Prepared, Spec
from .cross_entropy import IGNORED, SMOOTHING

_CONFIGURATIONS: tuple[Choice, ...] = (
    {"block": CHUNK, "warps": 8},
    {"block": CHUNK, "warps": 16},
    {"block": 2 * CHUNK, "warps": 16},
    {"block": 2048, "warps": 4},
)
_NONE = tl.constexpr(float("-inf"))
_NAN = tl.constexpr(float("nan"))
_IGNORED = tl.constexpr(IGNORED)


@triton.jit
def _logits(x, at, mask, POLICY: tl.constexpr):
    return tl.load(x + at, mask=mask, other=_NONE, eviction_policy=POLICY).to(tl.float32)


@triton.jit
def _gradient(p, column, wanted, scale, N: tl.constexpr, SMOOTHING: tl.constexpr):
    own = tl.where(column == wanted, 1.0 - SMOOTHING, 0.0)
    dx = (p - own - SMOOTHING / N) * scale
    dx = tl.where((wanted >= 0) & (wanted < N), dx, _NAN)
    return tl.where(wanted == _IGNORED, 0.0, dx)


@triton.jit
def _forward(
    dloss, x, target, loss, lse, dx,
    N: tl.constexpr, SMOOTHING: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """dx is None where the loss alone is wanted."""
    row = tl.program_id(0).to(tl.int64)
    wanted = tl.load(target + row)
    is_class = (wanted >= 0) & (wanted < N)
    first = tl.load(x + row * N).to(tl.float32)
    first = tl.where(tl.abs(first) < float("inf"), first, 0.0)
    largest = tl.full((BLOCK,), _NONE, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    apart = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = _logits(x, row * N + column, column < N, "evict_first" if dx is None else "")
        seen = largest
        largest = tl.maximum(seen, value)
        # While all is -inf, exponentials are relative to 0, and 0.
        base = tl.where(largest == _NONE, 0.0, largest)
        total = total * tl.exp(seen - base) + tl.exp(value - base)
        if SMOOTHING > 0.0:
            apart += tl.where(column < N, value - first, 0.0)
    top = tl.max(largest, 0)
    sum_ = tl.sum(total * tl.exp(largest - tl.where(top == _NONE, 0.0, top)), 0)
    logarithm = tl.log(sum_)
    own = tl.load(x + row * N + wanted, mask=is_class, other=0.0).to(tl.float32)
    value = (1.0 - SMOOTHING) * ((top - own) + logarithm)
    if SMOOTHING > 0.0:
        value += SMOOTHING * (((top - first) + logarithm) - tl.sum(apart, 0) / N)
    value = tl.where(is_class, value, _NAN)
    tl.store(loss + row, tl.where(wanted == _IGNORED, 0.0, value))
    if lse is not None:
        tl.store(lse + row, tl.where(top == _NONE, _NAN, top + logarithm))
    if dx is not None:
        scale = tl.load(dloss + row)
        for start in range(0, N, BLOCK):
            column = start + tl.arange(0, BLOCK)
            at = row * N + column
            p = tl.exp(_logits(x, at, column < N, "evict_first") - top) * (1.0 / sum_)
            put(dx, at, _gradient(p, column, wanted, scale, N, SMOOTHING), column < N, STORE)


@triton.jit
def _backward(
    dloss, x, target, lse, dx,
    N: tl.constexpr, SMOOTHING: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    wanted, scale, logarithm = tl.load(target + row), tl.load(dloss + row), tl.load(lse + row)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        at = row * N + column
        p = tl.exp(_logits(x, at, column < N, "evict_first") - logarithm)
        put(dx, at, _gradient(p, column, wanted, scale, N, SMOOTHING), column < N, STORE)


def prepare(direction: str, spec: Spec) -> Prepared:
    rows, columns = spec.io.operands["x"].shape
    function = _forward if direction == "forward" else _backward
    fixed = {
        "N": columns,
        "SMOOTHING": SMOOTHING if "smoothed" in spec.operation.name else 0.0,
        "STORE": store(spec),
    }
    pointers = {name: name for name in function.arg_names if name in spec.io.operands}
    operands = ("dloss", "x", "target", "loss", "lse", "dx")
    absent = {n: None for n in operands if n in function.arg_names and n not in pointers}

    def plan(choice: Choice) -> Plan:
        block = min(int(choice["block"]), power_of_two(columns))
        constants = fixed | absent | {"BLOCK": block}
        warps = min(int(choice["warps"]), max(1, block // 128))
        return Plan([Kernel(function, pointers, constants, (rows, 1, 1), warps)])

    return choose(spec, plan, _CONFIGURATIONS)
