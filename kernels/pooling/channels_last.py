"""Pooling of images whose channels lie beside one another: NHWC, PyTorch's channels_last.

The rules are those of avg_pool2d and max_pool2d; only where elements lie is different.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..dtypes import FLOATS, DType
from ..operation import Direction, Directions, Operation, Tensor, operation
from ..shapes import POOLED_LAST_IMAGES
from .max_pool2d import max_pool2d
from .window_sums import avg_pool2d


@operation(shapes=POOLED_LAST_IMAGES, dtypes=FLOATS, tier=1)
def avg_pool2d_nhwc(
    images: int,
    channels: int,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    padding: int,
    dtype: DType,
) -> Directions:
    """y = the mean of a window, its padding counted as zeros: avg_pool2d, NHWC."""
    dims = images, channels, height, width, kernel, stride, padding
    return _channels_last(avg_pool2d, dims, dtype)


@operation(shapes=POOLED_LAST_IMAGES, dtypes=FLOATS, tier=1)
def max_pool2d_nhwc(
    images: int,
    channels: int,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    padding: int,
    dtype: DType,
) -> Directions:
    """y = the maximum of a window, whose place forward saves in one byte: max_pool2d, NHWC."""
    dims = images, channels, height, width, kernel, stride, padding
    return _channels_last(max_pool2d, dims, dtype)


def _channels_last(planes: Operation, dims: Sequence[int], dtype: DType) -> Directions:
    """The directions of an operation on NCHW images, on NHWC ones."""
    stated = planes.statement(*dims, dtype=dtype)
    assert stated.backward is not None
    return Directions(_rearranged(stated.forward), _rearranged(stated.backward))


def _rearranged(one: Direction) -> Direction:
    def tensor(nchw: Tensor) -> Tensor:
        images, channels, height, width = nchw.shape
        return replace(nchw, shape=(images, height, width, channels))

    def reference(*nhwc: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = one.reference(*(value.permute(0, 3, 1, 2) for value in nhwc))
        listed = (results,) if isinstance(results, torch.Tensor) else results
        return tuple(result.permute(0, 2, 3, 1) for result in listed)

    return Direction(
        reads=[tensor(t) for t in one.reads],
        writes=[tensor(t) for t in one.writes],
        saves=[tensor(t) for t in one.saves],
        reference=reference,
    )
