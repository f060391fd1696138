"""The mean of every plane of an NCHW image, as PyTorch's adaptive_avg_pool2d with one output."""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType
from ..operation import Direction, Directions, operation, tensors
from ..shapes import PLANES


@operation(shapes=PLANES, dtypes=FLOATS)
def global_avg_pool(
    images: int, channels: int, height: int, width: int, dtype: DType
) -> Directions:
    """y = the mean of each channel of each image, summed in float32."""
    if min(height, width) < 1:
        raise ValueError(f"global_avg_pool: images have pixels; got {height}x{width}")

    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))

    def backward(dy: torch.Tensor) -> torch.Tensor:
        return (dy / (height * width))[:, :, None, None].expand(-1, -1, height, width)

    x, dx = tensors("x dx", (images, channels, height, width), dtype)
    (y,) = tensors("y", (images, channels), dtype, reduces=height * width)
    (dy,) = tensors("dy", (images, channels), dtype)
    return Directions(
        forward=Direction(reads=[x], writes=[y], reference=forward),
        backward=Direction(reads=[dy], writes=[dx], reference=backward),
    )
