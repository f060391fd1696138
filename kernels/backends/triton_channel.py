"""Batch normalization of NCHW images in Triton, alone or with relu behind it.

1. A plane is a row: one kernel leaves the moments of each (a mean and squared deviations per lane,
   merged at its end), or backward's two sums; a small one merges the images of a channel in a fixed
   order; the third reads the images again.
2. What passes relu is decided by one subtraction and one fused multiply-add, the same in every
   kernel.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton
import triton.language as tl

from ..dtypes import float32
from ..operation import Tensor
from ..spec import Choice, Prepared, Spec
from .triton import Kernel, Plan, choose, power_of_two, tiles
from .triton_rows import (
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

_CHANNELS, _IMAGES = 32, 32  # tile of the kernel that merges


@triton.jit
def row_moments(x, row, M: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Of each row the mean, and the sum of the squared deviations from it, merged stably."""
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    middle = tl.zeros((ROWS, BLOCK), tl.float32)
    count = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = (row < M)[:, None] & (column < N)[None, :]
        value = kept(x, row[:, None] * N + column[None, :], mask)
        apart = tl.where(mask, value - middle, 0.0)
        count += tl.where(mask, 1.0, 0.0)
        middle += apart / tl.maximum(count, 1.0)
        squares += apart * tl.where(mask, value - middle, 0.0)
    about = tl.sum(count * middle, 1) / N
    middle -= about[:, None]
    left = tl.sum(count * middle, 1) / N
    total = tl.sum(squares + count * middle * middle, 1) - left * left * N
    return about + left, tl.where(total < 0.0, 0.0, total)


@triton.jit
def plane_moments(
    x, means, deviations,
    M: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each plane the mean, and the sum of the squared deviations from it."""
    row = tile_rows(ROWS)
    mean, total = row_moments(x, row, M, N, ROWS, BLOCK)
    tl.store(means + row, mean, mask=row < M)
    tl.store(deviations + row, total, mask=row < M)


@triton.jit
def merge_moments(
    means, deviations, running_mean, running_var, updated_mean, updated_var, mean, rstd,
    IMAGES: tl.constexpr, CHANNELS: tl.constexpr, PIXELS: tl.constexpr,
    EPS: tl.constexpr, MOMENTUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = channel < CHANNELS
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, IMAGES, ROWS):
        image = start + tl.arange(0, ROWS)
        mask = (image < IMAGES)[:, None] & there[None, :]
        total += kept(means, image[:, None] * CHANNELS + channel[None, :], mask)
    about = tl.sum(total, 0) / IMAGES
    apart_sum = tl.zeros((ROWS, BLOCK), tl.float32)
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, IMAGES, ROWS):
        image = start + tl.arange(0, ROWS)
        mask = (image < IMAGES)[:, None] & there[None, :]
        at = image[:, None] * CHANNELS + channel[None, :]
        apart = tl.where(mask, kept(means, at, mask) - about[None, :], 0.0)
        apart_sum += apart
        squares += kept(deviations, at, mask) + PIXELS * (apart * apart)
    left = tl.sum(apart_sum, 0) / IMAGES
    own_mean = about + left
    variance = tl.sum(squares, 0) / (IMAGES * PIXELS) - left * left
    variance = tl.where(variance < 0.0, 0.0, variance)
    unbiased = variance * (IMAGES * PIXELS / (IMAGES * PIXELS - 1))
    old_mean, old_var = kept(running_mean, channel, there), kept(running_var, channel, there)
    put(updated_mean, channel, (1.0 - MOMENTUM) * old_mean + MOMENTUM * own_mean, there, "")
    put(updated_var, channel, (1.0 - MOMENTUM) * old_var + MOMENTUM * unbiased, there, "")
    tl.store(mean + channel, own_mean, mask=there)
    tl.store(rstd + channel, tl.rsqrt(variance + EPS), mask=there)


@triton.jit
def _pre(apart, scale, bias):
    return tl.fma(apart, tl.broadcast_to(scale, apart.shape), tl.broadcast_to(bias, apart.shape))


@triton.jit
def normalize(
    x, weight, bias, mean, rstd, y,
    M: tl.constexpr, N: tl.constexpr, CHANNELS: tl.constexpr, EPS: tl.constexpr,
    RUNNING: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """With RUNNING `rstd` is a variance."""
    CHUNKS: tl.constexpr = (N + BLOCK - 1) // BLOCK  # noqa: N806
    row = (tl.program_id(0) // CHUNKS).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % CHUNKS * BLOCK + tl.arange(0, BLOCK)
    mask = (row < M)[:, None] & (column < N)[None, :]
    at = row[:, None] * N + column[None, :]
    value = once(x, at, mask)
    channel = row % CHANNELS
    r = kept(rstd, channel, row < M)
    if RUNNING:
        r = tl.rsqrt(r + EPS)
    scale = r * kept(weight, channel, row < M)
    apart = value - kept(mean, channel, row < M)[:, None]
    pre = _pre(apart, scale[:, None], kept(bias, channel, row < M)[:, None])
    put(y, at, tl.where(pre < 0.0, 0.0, pre) if RELU else pre, mask, STORE)


@triton.jit
def _passed(d, apart, scale, bias, channel, there, RELU: tl.constexpr):
    if RELU:
        pre = _pre(apart, scale, kept(bias, channel, there)[:, None])
        d = tl.where(pre <= 0.0, 0.0, d)
    return d


@triton.jit
def plane_sums(
    dy, x, weight, bias, mean, rstd, projections, sums,
    M: tl.constexpr, N: tl.constexpr, CHANNELS: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each plane the sums of g · xhat and of g."""
    row = tile_rows(ROWS)
    channel, there = row % CHANNELS, row < M
    middle = kept(mean, channel, there)[:, None]
    r = kept(rstd, channel, there)[:, None]
    scale = r * kept(weight, channel, there)[:, None]
    dot = tl.zeros((ROWS, BLOCK), tl.float32)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = there[:, None] & (column < N)[None, :]
        at = row[:, None] * N + column[None, :]
        apart = kept(x, at, mask) - middle
        d = _passed(kept(dy, at, mask), apart, scale, bias, channel, there, RELU)
        d = tl.where(mask, d, 0.0)
        dot += d * (apart * r)
        total += d
    tl.store(projections + row, tl.sum(dot, 1), mask=there)
    tl.store(sums + row, tl.sum(total, 1), mask=there)


@triton.jit
def normalize_backward(
    dy, x, weight, bias, mean, rstd, dweight, dbias, dx,
    M: tl.constexpr, N: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
    RELU: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    CHUNKS: tl.constexpr = (N + BLOCK - 1) // BLOCK  # noqa: N806
    row = (tl.program_id(0) // CHUNKS).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % CHUNKS * BLOCK + tl.arange(0, BLOCK)
    channel, there = row % CHANNELS, row < M
    mask = there[:, None] & (column < N)[None, :]
    at = row[:, None] * N + column[None, :]
    r = kept(rstd, channel, there)[:, None]
    scale = r * kept(weight, channel, there)[:, None]
    apart = once(x, at, mask) - kept(mean, channel, there)[:, None]
    d = _passed(once(dy, at, mask), apart, scale, bias, channel, there, RELU)
    along = apart * r * (kept(dweight, channel, there) / VALUES)[:, None]
    value = (d - (kept(dbias, channel, there) / VALUES)[:, None] - along) * scale
    put(dx, at, value, mask, STORE)


def inference(spec: Spec, eps: float, *, relu: bool = False) -> Prepared:
    """Operands x, weight, bias, running_mean, running_var, y."""
    pointers = {"mean": "running_mean", "rstd": "running_var"} | _same("x weight bias y")
    constants = {"EPS": eps, "RUNNING": True, "RELU": relu}

    def plan(choice: Choice) -> Plan:
        return Plan([_planes(spec, normalize, pointers, constants, choice)])

    return choose(spec, plan, CONFIGURATIONS)


def training(spec: Spec, eps: float, momentum: float, *, relu: bool = False) -> Prepared:
    """Operands as in inference, updated_mean, updated_var, mean, rstd."""
    images, channels, height, width = (int(spec.dims[name]) for name in spec.operation.dims)
    moments = ("means", "deviations")
    merged = {
        "IMAGES": images,
        "CHANNELS": channels,
        "PIXELS": height * width,
        "EPS": eps,
        "MOMENTUM": momentum,
        "ROWS": _IMAGES,
        "BLOCK": _CHANNELS,
    }
    names = "running_mean running_var updated_mean updated_var mean rstd means deviations"
    merge = Kernel(merge_moments, _same(names), merged, (tiles(channels, _CHANNELS), 1, 1), 4)
    constants = {"EPS": eps, "RUNNING": False, "RELU": relu}
    last = _same("x weight bias mean rstd y")

    def plan(choice: Choice) -> Plan:
        first = _planes(spec, plane_moments, _same("x means deviations"), {}, choice, whole=True)
        kernels = [first, merge, _planes(spec, normalize, last, constants, choice)]
        return Plan(kernels, _scratch(moments, images * channels))

    return choose(spec, plan, CONFIGURATIONS)


def backward(spec: Spec, *, relu: bool = False) -> Prepared:
    """Operands dy, x, weight, mean, rstd, dx, dweight, dbias; bias where there is a relu."""
    images, channels, height, width = (int(spec.dims[name]) for name in spec.operation.dims)
    given = _same("dy x weight mean rstd" + (" bias" if relu else ""))
    constants: dict[str, Any] = {"RELU": relu, "VALUES": images * height * width}
    constants |= {} if relu else {"bias": None}
    partials = {"projections": "dweight", "sums": "dbias"}

    def plan(choice: Choice) -> Plan:
        first = _planes(
            spec, plane_sums, given | _same("projections sums"), constants, choice, whole=True
        )
        total = sum_of_partials(spec, partials, images, channels)
        last = given | _same("dweight dbias dx")
        return Plan(
            [first, total, _planes(spec, normalize_backward, last, constants, choice)],
            _scratch(tuple(partials), images * channels),
        )

    return choose(spec, plan, CONFIGURATIONS)


def _planes(
    spec: Spec,
    function: Any,
    pointers: Mapping[str, str],
    constants: Mapping[str, Any],
    choice: Choice,
    *,
    whole: bool = False,
) -> Kernel:
    """A launch over planes; `whole`: a program walks its planes, else it has a part of each."""
    images, channels, height, width = (int(spec.dims[name]) for name in spec.operation.dims)
    planes, pixels = images * channels, height * width
    block = min(power_of_two(pixels), CHUNK)
    per_tile = rows_per_tile(block, choice)
    programs = tiles(planes, per_tile) * (1 if whole else tiles(pixels, block))
    sizes = {"M": planes, "N": pixels, "CHANNELS": channels, "ROWS": per_tile, "BLOCK": block}
    known: dict[str, Any] = {**sizes, "STORE": store(spec), **constants}
    taken = {name: known[name] for name in function.arg_names if name in known}
    return Kernel(function, pointers, taken, (programs, 1, 1), warps_of(per_tile * block, choice))


def _same(names: str) -> dict[str, str]:
    return {name: name for name in names.split()}


def _scratch(names: Sequence[str], planes: int) -> list[Tensor]:
    return [Tensor(name, (planes,), float32) for name in names]
