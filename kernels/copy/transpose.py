"""Transposition of matrices, and the two layouts of images."""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType
from ..operation import Direction, Directions, Reference, operation, tensors
from ..shapes import EDGE_ROWS, LLM_ROWS, RAGGED_ROWS, edge, layer, ragged, scaled

MATRICES = (*LLM_ROWS, *RAGGED_ROWS, *EDGE_ROWS, edge(rows=72, columns=136))
# A stage of ResNet-50, its stem, and corners: few channels, one pixel.
IMAGES = (
    scaled("images", images=32, channels=64, height=112, width=112),
    layer(images=32, channels=256, height=56, width=56),
    ragged("images", images=32, channels=64, height=55, width=57),
    edge(images=2, channels=3, height=5, width=7),
    edge(images=1, channels=1, height=1, width=1),
    edge(images=2, channels=72, height=8, width=17),
    edge(images=3, channels=5, height=1, width=1),
    edge(images=0, channels=3, height=4, width=4),
)


def _rearranged(
    dtype: DType, before: tuple[int, ...], after: tuple[int, ...], f: Reference, *, separable: bool
) -> Directions:
    reads, writes = tensors("x", before, dtype), tensors("y", after, dtype)
    return Directions(Direction(reads, writes, f, separable=separable))


@operation(shapes=MATRICES, dtypes=FLOATS, tier=3)
def transpose(rows: int, columns: int, dtype: DType) -> Directions:
    """y[j, i] = x[i, j]."""
    return _rearranged(dtype, (rows, columns), (columns, rows), torch.t, separable=False)


@operation(shapes=IMAGES, dtypes=FLOATS, tier=3)
def nchw_to_nhwc(images: int, channels: int, height: int, width: int, dtype: DType) -> Directions:
    """y[n, h, w, c] = x[n, c, h, w]."""
    before, after = (images, channels, height, width), (images, height, width, channels)
    return _rearranged(dtype, before, after, lambda x: x.permute(0, 2, 3, 1), separable=True)


@operation(shapes=IMAGES, dtypes=FLOATS, tier=3)
def nhwc_to_nchw(images: int, channels: int, height: int, width: int, dtype: DType) -> Directions:
    """y[n, c, h, w] = x[n, h, w, c]."""
    before, after = (images, height, width, channels), (images, channels, height, width)
    return _rearranged(dtype, before, after, lambda x: x.permute(0, 3, 1, 2), separable=True)
