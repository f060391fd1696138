"""Normalization of NCHW images by groups of channels: y = (x - mean) · rstd · weight + bias.

As torch.nn.GroupNorm and InstanceNorm2d (affine): mean and biased variance are those of what one
sample has of one group (a slab), rstd = 1 / sqrt(var + eps) with eps = 1e-5, weight and bias are
per channel. An instance is a group of one channel. The result is formed in float32 and rounded
once. Forward saves mean and rstd, float32, per sample and group. As PyTorch does, both refuse what
leaves nothing: instance_norm no images or images of one pixel, group_norm one value in all.

Forward reads a slab twice where no block keeps it. Backward reads dy and x twice, since the
gradient of a slab needs the sums of all its channels: 5 passes where 3 must move.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..dtypes import FLOATS, DType, float32
from ..long_rows import LONGEST_OF_BLOCK
from ..operation import Direction, Directions, operation, tensors
from ..shapes import GROUPED_IMAGES, INSTANCE_IMAGES
from .batch_norm import twice

EPS = 1e-5

Real = torch.Tensor
Tensors = tuple[torch.Tensor, ...]


def _slabs(x: Real, groups: int) -> Real:
    """(samples, groups, channels of a group, pixels)."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, x.shape[2] * x.shape[3])


def _wide(statistic: Real) -> Real:
    return statistic[:, :, None, None]


def _of_group(parameter: Real, groups: int) -> Real:
    return parameter.reshape(1, groups, -1, 1)


def forward(x: Real, weight: Real, bias: Real, groups: int) -> Tensors:
    """y, mean, rstd."""
    slabs = _slabs(x, groups)
    mean = slabs.mean((2, 3))
    apart = slabs - _wide(mean)
    rstd = torch.rsqrt((apart * apart).mean((2, 3)) + EPS)
    scaled = apart * _wide(rstd) * _of_group(weight, groups)
    return (scaled + _of_group(bias, groups)).reshape(x.shape), mean, rstd


def backward(dy: Real, x: Real, weight: Real, mean: Real, rstd: Real) -> Tensors:
    """dx, dweight, dbias."""
    groups = mean.shape[1]
    xhat = (_slabs(x, groups) - _wide(mean)) * _wide(rstd)
    by_group = _slabs(dy, groups)
    g = by_group * _of_group(weight, groups)
    along = xhat * _wide((g * xhat).mean((2, 3)))
    dx = (g - _wide(g.mean((2, 3))) - along) * _wide(rstd)
    dweight = (by_group * xhat).sum((0, 3)).reshape(-1)
    return dx.reshape(x.shape), dweight, by_group.sum((0, 3)).reshape(-1)


def _directions(shape: tuple[int, int, int, int], groups: int, dtype: DType) -> Directions:
    images, channels, height, width = shape
    elements = channels // groups * height * width
    x, dy = tensors("x dy", shape, dtype)
    y, dx = tensors("y dx", shape, dtype, reduces=elements)
    weight, bias = tensors("weight bias", (channels,), dtype)
    gradients = tensors("dweight dbias", (channels,), dtype, reduces=images * height * width)
    mean, rstd = tensors("mean rstd", (images, groups), float32, reduces=elements)
    there = Direction(
        reads=[x, weight, bias],
        writes=[y],
        saves=[mean, rstd],
        reference=lambda x, weight, bias: forward(x, weight, bias, groups),
    )
    back = Direction(reads=[dy, x, weight, mean, rstd], writes=[dx, *gradients], reference=backward)
    if dtype.nbytes(elements) > LONGEST_OF_BLOCK:
        there = replace(there, schedule_bytes=there.traffic + x.traffic)
    return Directions(there, twice(back, *back.reads))


@operation(shapes=GROUPED_IMAGES, dtypes=FLOATS)
def group_norm(
    images: int, channels: int, height: int, width: int, groups: int, dtype: DType
) -> Directions:
    """y = (x - mean) · rstd · weight + bias, mean and rstd of a sample's group of channels."""
    if groups < 1 or channels % groups:
        raise ValueError(f"group_norm: groups divide channels; got {groups} and {channels}")
    if images * channels // groups * height * width == 1:
        raise ValueError("group_norm: more than one value per channel; got 1")
    return _directions((images, channels, height, width), groups, dtype)


@operation(shapes=INSTANCE_IMAGES, dtypes=FLOATS)
def instance_norm(images: int, channels: int, height: int, width: int, dtype: DType) -> Directions:
    """y = (x - mean) · rstd · weight + bias, mean and rstd of a sample's channel."""
    if height * width < 2 or not images:
        got = f"{images} of {height}x{width}"
        raise ValueError(f"instance_norm: images of more than one pixel, at least one; got {got}")
    return _directions((images, channels, height, width), channels, dtype)
