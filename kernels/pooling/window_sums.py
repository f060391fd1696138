"""Pooling of images by sums over windows, NCHW: means, and the root of a sum of squares.

As PyTorch's defaults have it: ceil_mode=False (no window reaches beyond the padded image),
count_include_pad=True and divisor_override=None (a mean divides by kernel², padding included).
Sums are float32; gradients of overlapping windows accumulate in the order of the windows. NaN and
infinity stay in the windows they are in.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType
from ..operation import Direction, Directions, operation, tensors
from ..shapes import ADAPTED_IMAGES, NORMED_IMAGES, POOLED_IMAGES
from .max_pool2d import pooled

Real = torch.Tensor


@operation(shapes=POOLED_IMAGES, dtypes=FLOATS, tier=1)
def avg_pool2d(
    images: int,
    channels: int,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    padding: int,
    dtype: DType,
) -> Directions:
    """y = the mean of a window, its padding counted as zeros: sum / kernel²."""
    check_window("avg_pool2d", height, width, kernel, stride, padding)
    out_h, out_w = (pooled(n, kernel, stride, padding) for n in (height, width))

    def forward(x: Real) -> Real:
        return torch.nn.functional.avg_pool2d(x, kernel, stride, padding)

    def backward(dy: Real) -> Real:
        return window_means_backward(dy, height, width, kernel, stride, padding)

    x, dx = tensors("x dx", (images, channels, height, width), dtype)
    y, dy = tensors("y dy", (images, channels, out_h, out_w), dtype)
    return Directions(
        forward=Direction(reads=[x], writes=[y], reference=forward),
        backward=Direction(reads=[dy], writes=[dx], reference=backward),
    )


@operation(shapes=ADAPTED_IMAGES, dtypes=FLOATS)
def adaptive_avg_pool2d(
    images: int,
    channels: int,
    height: int,
    width: int,
    out_height: int,
    out_width: int,
    dtype: DType,
) -> Directions:
    """y = the mean of a window, windows spread evenly: out_height x out_width of them.

    Window o of an axis is [floor(o · length / windows), ceil((o + 1) · length / windows)):
    neighbours share an element where the windows do not divide the length.
    """
    if min(height, width, out_height, out_width) < 1:
        raise ValueError(
            f"adaptive_avg_pool2d: images and outputs have pixels; got {height}x{width} and "
            f"{out_height}x{out_width}"
        )

    def forward(x: Real) -> Real:
        return torch.nn.functional.adaptive_avg_pool2d(x, (out_height, out_width))

    def backward(dy: Real) -> Real:
        like = dy.new_empty((*dy.shape[:2], height, width))
        dx: Real = torch.ops.aten._adaptive_avg_pool2d_backward(dy, like)
        return dx

    x, dx = tensors("x dx", (images, channels, height, width), dtype)
    y, dy = tensors("y dy", (images, channels, out_height, out_width), dtype)
    return Directions(
        forward=Direction(reads=[x], writes=[y], reference=forward),
        backward=Direction(reads=[dy], writes=[dx], reference=backward),
    )


@operation(shapes=NORMED_IMAGES, dtypes=FLOATS, tier=3)
def lp_pool2d(
    images: int, channels: int, height: int, width: int, kernel: int, stride: int, dtype: DType
) -> Directions:
    """y = the root of the sum of the squares of a window: norm_type=2, without padding.

    PyTorch takes the root of sign(m) · relu(|m|) · kernel², m the mean square; so dx = x · dy / y,
    summed over windows, is 0 and not NaN where a window is all zero. Squares are float32: beyond
    1.8e19 y is inf, below 1e-23 it is 0.
    """
    check_window("lp_pool2d", height, width, kernel, stride, 0)
    out_h, out_w = (pooled(n, kernel, stride, 0) for n in (height, width))

    def forward(x: Real) -> Real:
        mean: Real = torch.nn.functional.avg_pool2d(x * x, kernel, stride)
        return (mean * kernel**2).sqrt()

    def backward(dy: Real, x: Real, y: Real) -> Real:
        share = torch.where(y == 0, 0.0, dy / y) * kernel**2
        return x * window_means_backward(share, height, width, kernel, stride, 0)

    x, dx = tensors("x dx", (images, channels, height, width), dtype, reduces=kernel**2)
    y, dy = tensors("y dy", (images, channels, out_h, out_w), dtype, reduces=kernel**2)
    return Directions(
        forward=Direction(reads=[x], writes=[y], reference=forward),
        backward=Direction(reads=[dy, x, y], writes=[dx], reference=backward),
    )


def window_means_backward(
    dy: Real, height: int, width: int, kernel: int, stride: int, padding: int
) -> Real:
    """dx of the means of windows, NCHW: each gives every element dy / kernel²."""
    like = dy.new_empty((*dy.shape[:2], height, width))
    windows = [kernel, kernel], [stride, stride], [padding, padding]
    dx: Real = torch.ops.aten.avg_pool2d_backward(dy, like, *windows, False, True, None)
    return dx


def check_window(
    name: str, height: int, width: int, kernel: int, stride: int, padding: int
) -> None:
    """Raises ValueError, naming the operation, for a window that PyTorch refuses too."""
    if kernel < 1 or stride < 1 or not 0 <= padding <= kernel // 2:
        raise ValueError(
            f"{name}: kernel >= 1, stride >= 1 and padding <= kernel / 2; "
            f"got {kernel}, {stride} and {padding}"
        )
    if min(height, width) + 2 * padding < kernel:
        raise ValueError(f"{name}: window {kernel} exceeds the padded {height}x{width} image")
