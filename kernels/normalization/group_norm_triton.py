"""Group and instance normalization of NCHW images in Triton.

A slab, the channels of a group of one sample, lies in one piece: forward has the moments of each
slab as of a plane, then a pass over planes. Backward's sums are those of planes: one small kernel
makes them a slab's, weighted, another the parameters' gradients.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803, N806 - compile-time constants are capitals in Triton

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ..backends.triton import Kernel, Plan, choose, power_of_two, tiles
from ..backends.triton_channel import row_moments
from ..backends.triton_rows import (
    CHUNK,
    CONFIGURATIONS,
    kept,
    once,
    put,
    rows_per_tile,
    store,
    sum_of_partials,
    tile_rows,
    warps_of,
)
from ..dtypes import float32
from ..operation import Tensor
from ..spec import Choice, Prepared, Spec
from .group_norm import EPS


@triton.jit
def _slab_moments(
    x, mean, rstd,
    M: tl.constexpr, N: tl.constexpr, EPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tile_rows(ROWS)
    middle, total = row_moments(x, row, M, N, ROWS, BLOCK)
    tl.store(mean + row, middle, mask=row < M)
    tl.store(rstd + row, tl.rsqrt(total / N + EPS), mask=row < M)


@triton.jit
def _normalize(
    x, weight, bias, mean, rstd, y,
    M: tl.constexpr, N: tl.constexpr, CHANNELS: tl.constexpr, OF_GROUP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    CHUNKS: tl.constexpr = (N + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // CHUNKS).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % CHUNKS * BLOCK + tl.arange(0, BLOCK)
    there = row < M
    mask = there[:, None] & (column < N)[None, :]
    at = row[:, None] * N + column[None, :]
    scale = kept(rstd, row // OF_GROUP, there) * kept(weight, row % CHANNELS, there)
    value = once(x, at, mask) - kept(mean, row // OF_GROUP, there)[:, None]
    put(y, at, value * scale[:, None] + kept(bias, row % CHANNELS, there)[:, None], mask, STORE)


@triton.jit
def _plane_sums(
    dy, x, mean, rstd, projections, sums,
    M: tl.constexpr, N: tl.constexpr, OF_GROUP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each plane the sums of dy · xhat and of dy."""
    row = tile_rows(ROWS)
    there = row < M
    middle = kept(mean, row // OF_GROUP, there)[:, None]
    dot = tl.zeros((ROWS, BLOCK), tl.float32)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = there[:, None] & (column < N)[None, :]
        at = row[:, None] * N + column[None, :]
        d = kept(dy, at, mask)
        dot += d * (kept(x, at, mask) - middle)
        total += d
    r = kept(rstd, row // OF_GROUP, there)
    tl.store(projections + row, tl.sum(dot, 1) * r, mask=there)
    tl.store(sums + row, tl.sum(total, 1), mask=there)


@triton.jit
def _slab_means(
    projections, sums, weight, along, averages,
    CHANNELS: tl.constexpr, OF_GROUP: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each slab the means of g · xhat and of g, g = dy · weight."""
    slab = tl.program_id(0)
    dot = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, OF_GROUP, BLOCK):
        plane = start + tl.arange(0, BLOCK)
        mask = plane < OF_GROUP
        plane += slab * OF_GROUP
        w = kept(weight, plane % CHANNELS, mask)
        dot += w * kept(projections, plane, mask)
        total += w * kept(sums, plane, mask)
    tl.store(along + slab, tl.sum(dot, 0) / (OF_GROUP * N))
    tl.store(averages + slab, tl.sum(total, 0) / (OF_GROUP * N))


@triton.jit
def _normalize_backward(
    dy, x, weight, mean, rstd, along, averages, dx,
    M: tl.constexpr, N: tl.constexpr, CHANNELS: tl.constexpr, OF_GROUP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    CHUNKS: tl.constexpr = (N + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // CHUNKS).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % CHUNKS * BLOCK + tl.arange(0, BLOCK)
    there, slab = row < M, row // OF_GROUP
    mask = there[:, None] & (column < N)[None, :]
    at = row[:, None] * N + column[None, :]
    r = kept(rstd, slab, there)[:, None]
    xhat = (once(x, at, mask) - kept(mean, slab, there)[:, None]) * r
    value = once(dy, at, mask) * kept(weight, row % CHANNELS, there)[:, None]
    value -= kept(averages, slab, there)[:, None] + xhat * kept(along, slab, there)[:, None]
    put(dx, at, value * r, mask, STORE)


def prepare(direction: str, spec: Spec) -> Prepared:
    dims = spec.dims
    images, channels, pixels = dims["images"], dims["channels"], dims["height"] * dims["width"]
    slabs, planes = images * dims.get("groups", channels), images * channels
    of_group = planes // max(slabs, 1)
    sizes: dict[str, Any] = {"CHANNELS": channels, "OF_GROUP": of_group, "EPS": EPS}

    def over(function: Any, rows: int, columns: int, choice: Choice, *, parts: bool) -> Kernel:
        """`parts`: a program has a part of each of its rows, else it walks them."""
        block = min(power_of_two(columns), CHUNK)
        per_tile = rows_per_tile(block, choice)
        grid = tiles(rows, per_tile) * (tiles(columns, block) if parts else 1), 1, 1
        known = {**sizes, "M": rows, "N": columns, "ROWS": per_tile, "BLOCK": block}
        known["STORE"] = store(spec)
        pointers = {name: name for name in function.arg_names if name not in known}
        constants = {name: known[name] for name in function.arg_names if name in known}
        return Kernel(function, pointers, constants, grid, warps_of(per_tile * block, choice))

    def forward(choice: Choice) -> Plan:
        moments = over(_slab_moments, slabs, of_group * pixels, choice, parts=False)
        return Plan([moments, over(_normalize, planes, pixels, choice, parts=True)])

    def backward(choice: Choice) -> Plan:
        block = min(power_of_two(of_group), 1024)
        means = {"CHANNELS": channels, "OF_GROUP": of_group, "N": pixels, "BLOCK": block}
        names = ("projections", "sums", "weight", "along", "averages")
        kernels = [
            over(_plane_sums, planes, pixels, choice, parts=False),
            sum_of_partials(spec, {"projections": "dweight", "sums": "dbias"}, images, channels),
            Kernel(_slab_means, {name: name for name in names}, means, (slabs, 1, 1), 1),
            over(_normalize_backward, planes, pixels, choice, parts=True),
        ]
        lengths = {"projections": planes, "sums": planes, "along": slabs, "averages": slabs}
        return Plan(kernels, [Tensor(name, (n,), float32) for name, n in lengths.items()])

    return choose(spec, forward if direction == "forward" else backward, CONFIGURATIONS)
