"""Batch normalization of images in Triton, alone or with relu behind it.

1. NCHW: a plane is a row. One kernel leaves the moments of each (a mean and squared deviations per
   lane, merged at its end), or backward's two sums; a small one merges the images of a channel in a
   fixed order; the third reads the images again.
2. NHWC: a pixel is a row and channels are columns. What is merged are shares of the rows
   (triton_channel_last.py); the third kernel is the same.
3. What passes relu is decided by one subtraction and one fused multiply-add, the same in every
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

_CHANNELS, _PARTS = 32, 32  # tile of the kernel that merges


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
    PARTS: tl.constexpr, CHANNELS: tl.constexpr, SHARE: tl.constexpr, VALUES: tl.constexpr,
    EPS: tl.constexpr, MOMENTUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of parts of SHARE values of a channel, the last of which has what is left of VALUES."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = channel < CHANNELS
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, PARTS, ROWS):
        part = (start + tl.arange(0, ROWS)).to(tl.int64)
        count = tl.minimum(VALUES - part * SHARE, SHARE).to(tl.float32)[:, None]
        mask = (part < PARTS)[:, None] & there[None, :]
        total += count * kept(means, part[:, None] * CHANNELS + channel[None, :], mask)
    about = tl.sum(total, 0) / VALUES
    apart_sum = tl.zeros((ROWS, BLOCK), tl.float32)
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, PARTS, ROWS):
        part = (start + tl.arange(0, ROWS)).to(tl.int64)
        count = tl.minimum(VALUES - part * SHARE, SHARE).to(tl.float32)[:, None]
        mask = (part < PARTS)[:, None] & there[None, :]
        at = part[:, None] * CHANNELS + channel[None, :]
        apart = tl.where(mask, kept(means, at, mask) - about[None, :], 0.0)
        apart_sum += count * apart
        squares += kept(deviations, at, mask) + count * (apart * apart)
    left = tl.sum(apart_sum, 0) / VALUES
    own_mean = about + left
    variance = tl.sum(squares, 0) / VALUES - left * left
    variance = tl.where(variance < 0.0, 0.0, variance)
    unbiased = variance * (VALUES / (VALUES - 1))
    old_mean, old_var = kept(running_mean, channel, there), kept(running_var, channel, there)
    put(updated_mean, channel, (1.0 - MOMENTUM) * old_mean + MOMENTUM * own_mean, there, "")
    put(updated_var, channel, (1.0 - MOMENTUM) * old_var + MOMENTUM * unbiased, there, "")
    tl.store(mean + channel, own_mean, mask=there)
    tl.store(rstd + channel, tl.rsqrt(variance + EPS), mask=there)


@triton.jit
def _pre(apart, scale, bias):
    return tl.fma(apart, tl.broadcast_to(scale, apart.shape), tl.broadcast_to(bias, apart.shape))


@triton.jit
def _of_channels(
    values, row, column, M: tl.constexpr, N: tl.constexpr, CHANNELS: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    """A value per channel, along a tile: rows are planes, or columns channels (LAST)."""
    if LAST:
        found = kept(values, column, column < N)[None, :]
    else:
        found = kept(values, row % CHANNELS, row < M)[:, None]
    return found


@triton.jit
def normalize(
    x, weight, bias, mean, rstd, y,
    M: tl.constexpr, N: tl.constexpr, CHANNELS: tl.constexpr, LAST: tl.constexpr,
    EPS: tl.constexpr, RUNNING: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """With RUNNING `rstd` is a variance."""
    CHUNKS: tl.constexpr = (N + BLOCK - 1) // BLOCK  # noqa: N806
    row = (tl.program_id(0) // CHUNKS).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % CHUNKS * BLOCK + tl.arange(0, BLOCK)
    mask = (row < M)[:, None] & (column < N)[None, :]
    at = row[:, None] * N + column[None, :]
    value = once(x, at, mask)
    r = _of_channels(rstd, row, column, M, N, CHANNELS, LAST)
    if RUNNING:
        r = tl.rsqrt(r + EPS)
    scale = r * _of_channels(weight, row, column, M, N, CHANNELS, LAST)
    apart = value - _of_channels(mean, row, column, M, N, CHANNELS, LAST)
    pre = _pre(apart, scale, _of_channels(bias, row, column, M, N, CHANNELS, LAST))
    put(y, at, tl.where(pre < 0.0, 0.0, pre) if RELU else pre, mask, STORE)


@triton.jit
def _passed(
    d, apart, scale, bias, row, column, M: tl.constexpr, N: tl.constexpr,
    CHANNELS: tl.constexpr, LAST: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    if RELU:
        pre = _pre(apart, scale, _of_channels(bias, row, column, M, N, CHANNELS, LAST))
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
    middle = _of_channels(mean, row, row, M, N, CHANNELS, False)
    r = _of_channels(rstd, row, row, M, N, CHANNELS, False)
    scale = r * _of_channels(weight, row, row, M, N, CHANNELS, False)
    dot = tl.zeros((ROWS, BLOCK), tl.float32)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = (row < M)[:, None] & (column < N)[None, :]
        at = row[:, None] * N + column[None, :]
        apart = kept(x, at, mask) - middle
        d = kept(dy, at, mask)
        d = _passed(d, apart, scale, bias, row, row, M, N, CHANNELS, False, RELU)
        d = tl.where(mask, d, 0.0)
        dot += d * (apart * r)
        total += d
    tl.store(projections + row, tl.sum(dot, 1), mask=row < M)
    tl.store(sums + row, tl.sum(total, 1), mask=row < M)


@triton.jit
def normalize_backward(
    dy, x, weight, bias, mean, rstd, dweight, dbias, dx,
    M: tl.constexpr, N: tl.constexpr, CHANNELS: tl.constexpr, LAST: tl.constexpr,
    VALUES: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    CHUNKS: tl.constexpr = (N + BLOCK - 1) // BLOCK  # noqa: N806
    row = (tl.program_id(0) // CHUNKS).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % CHUNKS * BLOCK + tl.arange(0, BLOCK)
    mask = (row < M)[:, None] & (column < N)[None, :]
    at = row[:, None] * N + column[None, :]
    r = _of_channels(rstd, row, column, M, N, CHANNELS, LAST)
    scale = r * _of_channels(weight, row, column, M, N, CHANNELS, LAST)
    apart = once(x, at, mask) - _of_channels(mean, row, column, M, N, CHANNELS, LAST)
    d = once(dy, at, mask)
    d = _passed(d, apart, scale, bias, row, column, M, N, CHANNELS, LAST, RELU)
    along = apart * r * (_of_channels(dweight, row, column, M, N, CHANNELS, LAST) / VALUES)
    d -= _of_channels(dbias, row, column, M, N, CHANNELS, LAST) / VALUES
    value = (d - along) * scale
    put(dx, at, value, mask, STORE)


def inference(spec: Spec, eps: float, *, relu: bool = False, last: bool = False) -> Prepared:
    """Operands x, weight, bias, running_mean, running_var, y. `last`: images are NHWC."""
    pointers = {"mean": "running_mean", "rstd": "running_var"} | same("x weight bias y")
    constants = {"EPS": eps, "RUNNING": True, "RELU": relu}

    def plan(choice: Choice) -> Plan:
        return Plan([over_images(spec, normalize, pointers, constants, choice, last=last)])

    return choose(spec, plan, CONFIGURATIONS)


def training(spec: Spec, eps: float, momentum: float, *, relu: bool = False) -> Prepared:
    """Operands as in inference, updated_mean, updated_var, mean, rstd."""
    images, channels, height, width = (int(spec.dims[name]) for name in spec.operation.dims)
    moments = ("means", "deviations")
    merge = merging(spec, eps, momentum, images, height * width)
    constants = {"EPS": eps, "RUNNING": False, "RELU": relu}
    last = same("x weight bias mean rstd y")

    def plan(choice: Choice) -> Plan:
        first = over_images(spec, plane_moments, same("x means deviations"), {}, choice, whole=True)
        kernels = [first, merge, over_images(spec, normalize, last, constants, choice)]
        return Plan(kernels, scratch(moments, images * channels))

    return choose(spec, plan, CONFIGURATIONS)


def backward(spec: Spec, *, relu: bool = False) -> Prepared:
    """Operands dy, x, weight, mean, rstd, dx, dweight, dbias; bias where there is a relu."""
    images, channels, height, width = (int(spec.dims[name]) for name in spec.operation.dims)
    given = same("dy x weight mean rstd" + (" bias" if relu else ""))
    constants: dict[str, Any] = {"RELU": relu, "VALUES": images * height * width}
    constants |= {} if relu else {"bias": None}
    partials = {"projections": "dweight", "sums": "dbias"}

    def plan(choice: Choice) -> Plan:
        first = over_images(
            spec, plane_sums, given | same("projections sums"), constants, choice, whole=True
        )
        total = sum_of_partials(spec, partials, images, channels)
        last = given | same("dweight dbias dx")
        return Plan(
            [first, total, over_images(spec, normalize_backward, last, constants, choice)],
            scratch(tuple(partials), images * channels),
        )

    return choose(spec, plan, CONFIGURATIONS)


def merging(spec: Spec, eps: float, momentum: float, parts: int, share: int) -> Kernel:
    """The launch that merges `means` and `deviations` of parts of `share` values each."""
    images, channels, height, width = (int(spec.dims[name]) for name in spec.operation.dims)
    constants = {
        "PARTS": parts,
        "CHANNELS": channels,
        "SHARE": share,
        "VALUES": images * height * width,
        "EPS": eps,
        "MOMENTUM": momentum,
        "ROWS": _PARTS,
        "BLOCK": _CHANNELS,
    }
    names = "running_mean running_var updated_mean updated_var mean rstd means deviations"
    grid = (tiles(channels, _CHANNELS), 1, 1)
    return Kernel(merge_moments, same(names), constants, grid, 4)


def over_images(
    spec: Spec,
    function: Any,
    pointers: Mapping[str, str],
    constants: Mapping[str, Any],
    choice: Choice,
    *,
    whole: bool = False,
    last: bool = False,
) -> Kernel:
    """A launch over rows: planes, or pixels where channels are last.

    whole: a program walks its rows, else it has a part of each.
    """
    images, channels, height, width = (int(spec.dims[name]) for name in spec.operation.dims)
    rows, columns = images * channels, height * width
    if last:
        rows, columns = images * height * width, channels
    block = min(power_of_two(columns), CHUNK)
    per_tile = rows_per_tile(block, choice)
    programs = tiles(rows, per_tile) * (1 if whole else tiles(columns, block))
    sizes = {"M": rows, "N": columns, "CHANNELS": channels, "ROWS": per_tile, "BLOCK": block}
    known: dict[str, Any] = {**sizes, "LAST": last, "STORE": store(spec), **constants}
    taken = {name: known[name] for name in function.arg_names if name in known}
    return Kernel(function, pointers, taken, (programs, 1, 1), warps_of(per_tile * block, choice))


def same(names: str) -> dict[str, str]:
    return {name: name for name in names.split()}


def scratch(names: Sequence[str], planes: int) -> list[Tensor]:
    return [Tensor(name, (planes,), float32) for name in names]
