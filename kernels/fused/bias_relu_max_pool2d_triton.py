"""Bias, relu and max-pooling of NCHW images in Triton: the kernels of max_pool2d, told of a bias.

Backward sums the gradient of the bias in the pass that makes dx: blocks of lanes leave a sum for
each of the two planes they may have lanes of, and a small kernel adds those of a channel in a fixed
order.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

import triton
import triton.language as tl

from ..backends.triton import Kernel, Plan, choose, power_of_two, tiles
from ..dtypes import float32
from ..operation import Tensor
from ..pooling.max_pool2d_triton import (
    CONFIGURATIONS,
    backward,
    block_of,
    forward,
    geometry,
    over_lanes,
)
from ..spec import Choice, Prepared, Spec

_IMAGES = 16  # at a time, of a channel


@triton.jit
def _channel_sums(
    sums, dbias,
    IMAGES: tl.constexpr, CHANNELS: tl.constexpr, CELLS: tl.constexpr, BLOCK: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((ROWS, PARTS), tl.float32)
    for start in range(0, IMAGES, ROWS):
        image = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        plane = image * CHANNELS + tl.program_id(0)
        block = plane * CELLS // BLOCK + tl.arange(0, PARTS)[None, :]
        mask = (image < IMAGES) & (block * BLOCK < (plane + 1) * CELLS)
        place = plane - block * BLOCK // CELLS  # of the planes that the block has lanes of
        total += tl.load(sums + block * 2 + place, mask=mask, other=0.0)
    tl.store(dbias + tl.program_id(0), tl.sum(tl.sum(total, 1), 0).to(dbias.dtype.element_ty))


def prepare(direction: str, spec: Spec) -> Prepared:
    constants, lanes = geometry(direction, spec)
    images, channels = spec.dims["images"], spec.dims["channels"]
    if direction == "forward":
        return over_lanes(spec, forward, constants | {"CHANNELS": channels}, lanes)
    cells = constants["CELLS_H"] * constants["CELLS_W"]
    pointers = {name: name for name in ("dy", "offset", "dx", "sums")}

    def plan(choice: Choice) -> Plan:
        most, warps = block_of(choice)
        block = min(most, power_of_two(cells + 1) // 2)  # no more than a plane
        blocks = tiles(lanes, block)
        first = Kernel(backward, pointers, constants | {"BLOCK": block}, (blocks, 1, 1), warps)
        sizes = {
            "IMAGES": images,
            "CHANNELS": channels,
            "CELLS": cells,
            "BLOCK": block,
            "PARTS": power_of_two(tiles(cells, block) + 1),
            "ROWS": _IMAGES,
        }
        last = Kernel(_channel_sums, {"sums": "sums", "dbias": "dbias"}, sizes, (channels, 1, 1), 1)
        return Plan([first, last], [Tensor("sums", (max(blocks, 1), 2), float32)])

    return choose(spec, plan, CONFIGURATIONS)
