"""AdamW with moments of 8 bits in Triton: blocks are decoded, stepped and encoded in registers."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..backends.triton import Kernel, Plan, choose, tiles
from ..backends.triton_codes import magnitude
from ..backends.triton_rows import kept, once, put, store
from ..spec import Choice, Prepared, Spec
from .adamw_8bit import BLOCK as SCALED
from .adamw_8bit import LARGEST, LARGEST_ROOT, SMALLEST
from .adamw_triton import decay, first_moment, second_moment, step

_SCALED, _SMALLEST = tl.constexpr(SCALED), tl.constexpr(SMALLEST)
_LARGEST, _LARGEST_ROOT = tl.constexpr(float(LARGEST)), tl.constexpr(float(LARGEST_ROOT))
_INTEGERS = tl.constexpr(12582912.0)  # 1.5 · 2^23: a sum with it ends where integers do

_CONFIGURATIONS: tuple[Choice, ...] = (
    {"warps": 4, "blocks": 4},
    {"warps": 8, "blocks": 8},
    {"warps": 8, "blocks": 4},
    {"warps": 4, "blocks": 8},
)
"""blocks: of 256 elements, a program."""


@triton.jit
def _blocks(N: tl.constexpr, BLOCKS: tl.constexpr):
    """(blocks of this program, elements of each, which of these there are)."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    at = block[:, None] * _SCALED + tl.arange(0, _SCALED)[None, :]
    return block, at, at < N


@triton.jit
def _decoded(q, scale, block, at, mask, N: tl.constexpr):
    there = block < (N + _SCALED - 1) // _SCALED
    return once(q, at, mask) * kept(scale, block, there)[:, None]


@triton.jit
def _put_encoded(
    x, q, scale, block, at, mask, N: tl.constexpr, LARGEST: tl.constexpr, STORE: tl.constexpr
):  # fmt: skip
    """Codes of [blocks, 256] moments, 0 where a scale is not finite, and the scales."""
    found = tl.div_rn(tl.max(magnitude(x), 1).to(tl.float32, bitcast=True), LARGEST)
    found = tl.where(found < _SMALLEST, _SMALLEST, found)
    code = x * tl.div_rn(1.0, found)[:, None]
    code = tl.where(code == code, tl.minimum(tl.maximum(code, -LARGEST), LARGEST), 0.0)
    put(q, at, (code + _INTEGERS).to(tl.int32, bitcast=True) & 0xFF, mask, STORE)
    put(scale, block, found, block < (N + _SCALED - 1) // _SCALED, STORE)


@triton.jit
def _step(
    p, g, m, r, m_scale, r_scale, new_p, new_m, new_r, new_m_scale, new_r_scale,
    N: tl.constexpr, BLOCKS: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    block, at, mask = _blocks(N, BLOCKS)
    gradient = once(g, at, mask)
    root = _decoded(r, r_scale, block, at, mask, N)
    moment = first_moment(gradient, _decoded(m, m_scale, block, at, mask, N))
    v = second_moment(gradient, root * root)
    put(new_p, at, step(decay(once(p, at, mask)), moment, v), mask, STORE)
    _put_encoded(moment, new_m, new_m_scale, block, at, mask, N, _LARGEST, STORE)
    _put_encoded(tl.sqrt(v), new_r, new_r_scale, block, at, mask, N, _LARGEST_ROOT, STORE)


@triton.jit
def _decode(
    q, scale, y, ROOT: tl.constexpr,
    N: tl.constexpr, BLOCKS: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    block, at, mask = _blocks(N, BLOCKS)
    value = _decoded(q, scale, block, at, mask, N)
    put(y, at, value * value if ROOT else value, mask, STORE)


@triton.jit
def _encode(
    x, q, scale, ROOT: tl.constexpr,
    N: tl.constexpr, BLOCKS: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    block, at, mask = _blocks(N, BLOCKS)
    value = once(x, at, mask)
    if ROOT:
        _put_encoded(tl.sqrt(value), q, scale, block, at, mask, N, _LARGEST_ROOT, STORE)
    else:
        _put_encoded(value, q, scale, block, at, mask, N, _LARGEST, STORE)


_FUNCTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adamw_8bit": (_step, {}),
    "adamw_8bit_decode_m": (_decode, {"ROOT": False}),
    "adamw_8bit_decode_v": (_decode, {"ROOT": True}),
    "adamw_8bit_encode_m": (_encode, {"ROOT": False}),
    "adamw_8bit_encode_v": (_encode, {"ROOT": True}),
}


def prepare(direction: str, spec: Spec) -> Prepared:
    function, constants = _FUNCTIONS[spec.operation.name]
    pointers = {name: name for name in spec.io.operands}
    elements = spec.io.reads[0].elements
    fixed = {"N": elements, "STORE": store(spec), **constants}

    def plan(choice: Choice) -> Plan:
        blocks = int(choice["blocks"])
        grid = (tiles(elements, blocks * SCALED), 1, 1)
        warps = int(choice["warps"])
        return Plan([Kernel(function, pointers, fixed | {"BLOCKS": blocks}, grid, warps)])

    return choose(spec, plan, _CONFIGURATIONS)
