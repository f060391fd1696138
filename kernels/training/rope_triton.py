"""Rotary position embedding in Triton: a program per position, whose angles it reads once.

Neighbouring elements that are a pair are loaded as one vector and parted in registers.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton import Kernel, Plan, choose, power_of_two
from ..backends.triton_rows import CONFIGURATIONS, once, put, store, warps_of
from ..spec import Choice, Prepared, Spec


@triton.jit
def _turn(
    x, y, cos, sin,
    COUNT: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    HEADS: tl.constexpr, PAIRS: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """All heads of this position; cos and sin are [1, PAIRS]."""
    first = tl.program_id(0).to(tl.int64) * (COUNT * WIDTH)
    for start in range(0, COUNT, HEADS):
        head = (start + tl.arange(0, HEADS))[:, None]
        if HALF:
            pair = tl.arange(0, PAIRS)[None, :]
            at = first + head * WIDTH + pair
            mask = (head < COUNT) & (pair < WIDTH // 2)
            a, b = once(x, at, mask), once(x, at + WIDTH // 2, mask)
            put(y, at, a * cos - b * sin, mask, STORE)
            put(y, at + WIDTH // 2, b * cos + a * sin, mask, STORE)
        else:
            element = tl.arange(0, 2 * PAIRS)[None, :]
            at = first + head * WIDTH + element
            mask = (head < COUNT) & (element < WIDTH)
            a, b = tl.split(tl.reshape(once(x, at, mask), (HEADS, PAIRS, 2)))
            turned = tl.join(a * cos - b * sin, b * cos + a * sin)
            put(y, at, tl.reshape(turned, (HEADS, 2 * PAIRS)), mask, STORE)


@triton.jit
def _rope(
    q, k, cos, sin, turned_q, turned_k,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, WIDTH: tl.constexpr,
    SIGN: tl.constexpr, HALF: tl.constexpr,
    HEADS: tl.constexpr, PAIRS: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    pair = tl.arange(0, PAIRS)[None, :]
    at = tl.program_id(0).to(tl.int64) * (WIDTH // 2) + pair
    c = once(cos, at, pair < WIDTH // 2)
    s = once(sin, at, pair < WIDTH // 2) * SIGN
    _turn(q, turned_q, c, s, Q_HEADS, WIDTH, HALF, HEADS, PAIRS, STORE)
    _turn(k, turned_k, c, s, K_HEADS, WIDTH, HALF, HEADS, PAIRS, STORE)


def prepare(direction: str, spec: Spec) -> Prepared:
    positions, q_heads, k_heads, width = (int(spec.dims[name]) for name in spec.operation.dims)
    names = [tensor.name for tensor in (*spec.io.reads, *spec.io.writes)]
    pointers = dict(zip(("q", "k", "cos", "sin", "turned_q", "turned_k"), names, strict=True))
    pairs = power_of_two(width // 2)
    fixed = {
        "Q_HEADS": q_heads,
        "K_HEADS": k_heads,
        "WIDTH": width,
        "SIGN": 1.0 if direction == "forward" else -1.0,
        "HALF": spec.operation.name == "rope_half",
        "PAIRS": pairs,
        "STORE": store(spec),
    }

    def plan(choice: Choice) -> Plan:
        # Of as many heads as both have: the lanes of a tile that is too wide have narrow accesses.
        heads = min(power_of_two(min(q_heads, k_heads)), int(choice["tile"]) // (2 * pairs))
        warps = warps_of(heads * 2 * pairs, choice)
        constants = fixed | {"HEADS": max(1, heads)}
        return Plan([Kernel(_rope, pointers, constants, (positions, 1, 1), warps)])

    return choose(spec, plan, CONFIGURATIONS)
