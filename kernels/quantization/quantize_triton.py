"""Quantization in Triton. What has no scales of rows is one run, whatever its rows are."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..backends.triton import Kernel, Plan, choose, tiles
from ..backends.triton_codes import encode, magnitude, put_codes
from ..backends.triton_rows import kept, once, present, put, row_map, store, tile_rows
from ..spec import Choice, Prepared, Spec
from .quantize import SMALLEST

RUNS: tuple[Choice, ...] = (
    {"warps": 8, "per_thread": 16},
    {"warps": 4, "per_thread": 16},
    {"warps": 8, "per_thread": 8},
    {"warps": 4, "per_thread": 32},
)
"""per_thread: numbers; 16 fill the widest store of codes of a byte."""

_RUNS = {
    "quantize_e4m3": ("e4m3", "given"),
    "quantize_e5m2": ("e5m2", "given"),
    "quantize_mxfp8_floor": ("e4m3", "floor"),
    "quantize_mxfp8_up": ("e4m3", "up"),
    "quantize_mxfp4_floor": ("e2m1", "floor"),
    "quantize_mxfp4_up": ("e2m1", "up"),
    "quantize_nvfp4": ("e2m1", "e4m3"),
}
_ROWS = {"quantize_e4m3_rows": ("e4m3", 448.0), "quantize_int8_rows": ("int8", 127.0)}
_SMALLEST = tl.constexpr(SMALLEST)


@triton.jit
def _run(
    x, x1, q, scale, scales, F: tl.constexpr,
    N: tl.constexpr, FORMAT: tl.constexpr, SCALES: tl.constexpr,
    SM: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, 1)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = (start + tl.arange(0, BLOCK))[None, :]
    value = once(x, at, at < N)
    if x1 is not None:
        value = F(value, once(x1, at, at < N)).to(x.dtype.element_ty).to(tl.float32)
    put_codes(value, q, scale, scales, row, start, 1, N, FORMAT, SCALES, SM, 1, BLOCK, STORE)


@triton.jit
def _row_scale(found, LARGEST: tl.constexpr):
    """Of rows whose largest magnitudes are `found`, as bits. A comparison with NaN is false."""
    scale = tl.div_rn(found.to(tl.float32, bitcast=True), LARGEST)
    return tl.where(scale < _SMALLEST, _SMALLEST, scale)


@triton.jit
def _rows(
    x, q, scales,
    M: tl.constexpr, N: tl.constexpr, FORMAT: tl.constexpr, LARGEST: tl.constexpr,
    SM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    row = tile_rows(ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    there = (row < M)[:, None]
    at = row[:, None] * N + column
    value = once(x, at, there & (column < N))
    found = magnitude(value)
    for start in range(BLOCK, N, BLOCK):
        more = kept(x, at + start, there & (column + start < N))
        found = tl.maximum(found, magnitude(more))
    scale = _row_scale(tl.max(found, 1), LARGEST)
    tl.store(scales + row, scale, mask=row < M)
    reciprocal = tl.div_rn(1.0, scale)[:, None]
    put(q, at, encode(value * reciprocal, FORMAT, SM), there & (column < N), STORE)
    for start in range(BLOCK, N, BLOCK):
        mask = there & (column + start < N)
        more = once(x, at + start, mask)
        put(q, at + start, encode(more * reciprocal, FORMAT, SM), mask, STORE)


def quantize_run(spec: Spec, code: str, scales: str, f: Any = None) -> Prepared:
    """Codes of x, or of f of two tensors as their dtype stores it.

    code, scales: as `put_codes` has them.
    """
    inputs = [tensor for tensor in spec.io.reads if len(tensor.shape) > 1]
    pointers, absent = present(spec, ("q", "scale", "scales"))
    pointers |= dict(zip(("x", "x1"), (tensor.name for tensor in inputs), strict=False))
    fixed = absent | ({} if "x1" in pointers else {"x1": None})
    fixed |= {"F": f, "FORMAT": code, "SCALES": scales}
    return coded_run(spec, _run, pointers, fixed, inputs[0].elements)


def coded_run(
    spec: Spec, function: Any, pointers: dict[str, str], constants: dict[str, Any], numbers: int
) -> Prepared:
    """`function` over a run of numbers; it has N, SM, BLOCK and STORE too."""
    fixed = constants | {"N": numbers, "SM": spec.target.sm, "STORE": store(spec)}

    def plan(choice: Choice) -> Plan:
        warps = int(choice["warps"])
        block = warps * 32 * int(choice["per_thread"])
        grid = (tiles(numbers, block), 1, 1)
        return Plan([Kernel(function, pointers, fixed | {"BLOCK": block}, grid, warps)])

    return choose(spec, plan, RUNS)


def prepare(direction: str, spec: Spec) -> Prepared:
    name = spec.operation.name
    if name in _RUNS:
        return quantize_run(spec, *_RUNS[name])
    code, largest = _ROWS[name]
    constants = {"FORMAT": code, "LARGEST": largest, "SM": spec.target.sm}
    return row_map(spec, _rows, constants)
