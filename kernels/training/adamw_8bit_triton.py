"""AdamW with moments of 8 bits in Triton: blocks are decoded, stepped and encoded in registers."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton import Kernel, Plan, choose, tiles
from ..backends.triton_codes import magnitude
from ..backends.triton_rows import once, put, store
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
def _encoded(x, LARGEST: tl.constexpr):
    """(codes of [blocks, 256] moments, scales). Codes are 0 where the scale is not finite."""
    scale = tl.div_rn(tl.max(magnitude(x), 1).to(tl.float32, bitcast=True), LARGEST)
    scale = tl.where(scale < _SMALLEST, _SMALLEST, scale)
    code = x * tl.div_rn(1.0, scale)[:, None]
    code = tl.where(code == code, tl.minimum(tl.maximum(code, -LARGEST), LARGEST), 0.0)
    return (code + _INTEGERS).to(tl.int32, bitcast=True) & 0xFF, scale


@triton.jit
def _step(
    p, g, m, r, m_scale, r_scale, new_p, new_m, new_r, new_m_scale, new_r_scale,
    N: tl.constexpr, BLOCKS: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    there = block < (N + _SCALED - 1) // _SCALED
    at = block[:, None] * _SCALED + tl.arange(0, _SCALED)[None, :]
    mask = at < N
    gradient = once(g, at, mask)
    m_unit = tl.load(m_scale + block, mask=there, other=1.0)
    r_unit = tl.load(r_scale + block, mask=there, other=1.0)
    root = once(r, at, mask) * r_unit[:, None]
    moment = first_moment(gradient, once(m, at, mask) * m_unit[:, None])
    v = second_moment(gradient, root * root)
    put(new_p, at, step(decay(once(p, at, mask)), moment, v), mask, STORE)
    code, scale = _encoded(moment, _LARGEST)
    put(new_m, at, code, mask, STORE)
    put(new_m_scale, block, scale, there, STORE)
    code, scale = _encoded(tl.sqrt(v), _LARGEST_ROOT)
    put(new_r, at, code, mask, STORE)
    put(new_r_scale, block, scale, there, STORE)


def prepare(direction: str, spec: Spec) -> Prepared:
    pointers = {name: name for name in spec.io.operands}
    elements = spec.io.reads[0].elements

    def plan(choice: Choice) -> Plan:
        blocks = int(choice["blocks"])
        constants = {"N": elements, "BLOCKS": blocks, "STORE": store(spec)}
        grid = (tiles(elements, blocks * SCALED), 1, 1)
        return Plan([Kernel(_step, pointers, constants, grid, int(choice["warps"]))])

    return choose(spec, plan, _CONFIGURATIONS)
