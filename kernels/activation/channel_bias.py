"""A bias per channel of NCHW images, as behind a convolution."""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType
from ..operation import Direction, Directions, operation, tensors
from ..shapes import PLANES

Real = torch.Tensor


@operation(shapes=PLANES, dtypes=FLOATS)
def channel_bias_add(
    images: int, channels: int, height: int, width: int, dtype: DType
) -> Directions:
    """y = x + bias; dbias = the sum of dy over images and pixels, dx = dy is nothing to compute."""
    if min(height, width) < 1:
        raise ValueError(f"channel_bias_add: images have pixels; got {height}x{width}")
    x, y, dy = tensors("x y dy", (images, channels, height, width), dtype)
    (bias,) = tensors("bias", (channels,), dtype)
    dbias = tensors("dbias", (channels,), dtype, reduces=images * height * width)
    return Directions(
        forward=Direction(reads=[x, bias], writes=[y], reference=_forward),
        backward=Direction(reads=[dy], writes=dbias, reference=lambda dy: dy.sum((0, 2, 3))),
    )


def _forward(x: Real, bias: Real) -> Real:
    return x + bias[:, None, None]
