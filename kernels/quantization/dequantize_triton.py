"""Dequantization in Triton. What has no scales of rows is one run, whatever its rows are."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803, N806 - compile-time constants are capitals in Triton

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton_codes import decode, decode_pairs, power_of_two_number
from ..backends.triton_rows import kept, present, put, row_map, tile_rows
from ..spec import Prepared, Spec
from .quantize_triton import coded_run

_RUNS = {
    "dequantize_e4m3": ("e4m3", "given"),
    "dequantize_e5m2": ("e5m2", "given"),
    "dequantize_mxfp8": ("e4m3", "power"),
    "dequantize_mxfp4": ("e2m1", "power"),
    "dequantize_nvfp4": ("e2m1", "e4m3"),
}
_ROWS = {"dequantize_e4m3_rows": "e4m3", "dequantize_int8_rows": "int8"}


@triton.jit
def _codes(q, at, mask):
    return tl.load(q + at, mask=mask, other=0, eviction_policy="evict_first")


@triton.jit
def _run(
    q, scale, scales, y,
    N: tl.constexpr, FORMAT: tl.constexpr, SCALES: tl.constexpr,
    SM: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """SCALES: "given": one; "power", "e4m3": of blocks, the latter times a given one."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = start + tl.arange(0, BLOCK)
    if FORMAT == "e2m1":
        byte = start // 2 + tl.arange(0, BLOCK // 2)
        value = tl.reshape(decode_pairs(_codes(q, byte, byte < N // 2), 1, BLOCK), (BLOCK,))
    else:
        value = decode(_codes(q, at, at < N), FORMAT, SM)
    if SCALES == "given":
        value *= tl.load(scale)
    else:
        WIDTH: tl.constexpr = 16 if SCALES == "e4m3" else 32
        COUNT: tl.constexpr = BLOCK // WIDTH
        block = start // WIDTH + tl.arange(0, COUNT)
        code = tl.load(scales + block, mask=block < N // WIDTH, other=0)
        if SCALES == "e4m3":
            factor = decode(code, "e4m3", SM) * tl.load(scale)
        else:
            factor = power_of_two_number(code)
        value = tl.reshape(tl.reshape(value, (COUNT, WIDTH)) * factor[:, None], (BLOCK,))
    put(y, at, value, at < N, STORE)


@triton.jit
def _rows(
    q, scales, y,
    M: tl.constexpr, N: tl.constexpr, FORMAT: tl.constexpr,
    SM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tile_rows(ROWS)
    factor = kept(scales, row, row < M)[:, None]
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        mask = (row < M)[:, None] & (column < N)
        at = row[:, None] * N + column
        put(y, at, decode(_codes(q, at, mask), FORMAT, SM) * factor, mask, STORE)


def prepare(direction: str, spec: Spec) -> Prepared:
    name = spec.operation.name
    if name in _ROWS:
        constants = {"FORMAT": _ROWS[name], "SM": spec.target.sm}
        return row_map(spec, _rows, constants)
    code, scales = _RUNS[name]
    pointers, absent = present(spec, ("q", "scale", "scales", "y"))
    constants = absent | {"FORMAT": code, "SCALES": scales}
    return coded_run(spec, _run, pointers, constants, spec.io.operands["y"].elements)
