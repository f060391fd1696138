"""Max-pooling of images, NCHW, as torch.nn.functional.max_pool2d with ceil_mode=False, dilation 1.

NaN propagates; padding never wins (a window of -inf gives -inf); the first maximum in row-major
order wins ties and takes the gradient; gradients of overlapping windows accumulate, in the order
of the windows. Forward saves, in one byte, where in its window the maximum was: row · kernel +
column, counted from the window's first row and column even where those lie in the padding.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType, uint8
from ..operation import Direction, Directions, Tensor, operation, tensors
from ..shapes import POOLED_IMAGES


def pooled(length: int, kernel: int, stride: int, padding: int) -> int:
    """Output extent of one image axis (floor mode)."""
    return (length + 2 * padding - kernel) // stride + 1


@operation(shapes=POOLED_IMAGES, dtypes=FLOATS, tier=1)
def max_pool2d(
    images: int,
    channels: int,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    padding: int,
    dtype: DType,
) -> Directions:
    _check(height, width, kernel, stride, padding)
    out_h, out_w = (pooled(n, kernel, stride, padding) for n in (height, width))

    def origin(device: torch.device) -> torch.Tensor:
        """Flat input index of each window's first element, (out_h, out_w); may be outside."""
        top = torch.arange(out_h, device=device)[:, None] * stride - padding
        left = torch.arange(out_w, device=device)[None, :] * stride - padding
        return top * width + left

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, index = torch.nn.functional.max_pool2d(x, kernel, stride, padding, return_indices=True)
        row = index // width - torch.arange(out_h, device=x.device)[:, None] * stride + padding
        column = index % width - torch.arange(out_w, device=x.device)[None, :] * stride + padding
        return y, (row * kernel + column).to(torch.uint8)

    def backward(dy: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        inside = (offset.long() // kernel) * width + offset.long() % kernel
        index = (origin(dy.device) + inside).flatten(2)
        dx = dy.new_zeros((dy.shape[0], channels, height * width))
        return dx.scatter_add_(2, index, dy.flatten(2)).reshape(-1, channels, height, width)

    x, dx = tensors("x dx", (images, channels, height, width), dtype)
    y, dy = tensors("y dy", (images, channels, out_h, out_w), dtype)
    offset = Tensor("offset", y.shape, uint8)
    return Directions(
        forward=Direction(reads=[x], writes=[y], saves=[offset], reference=forward),
        backward=Direction(reads=[dy, offset], writes=[dx], reference=backward),
    )


def _check(height: int, width: int, kernel: int, stride: int, padding: int) -> None:
    if not 1 <= kernel <= 15:
        raise ValueError(f"max_pool2d: kernel is 1 to 15 (its offset is one byte); got {kernel}")
    if stride < 1 or not 0 <= padding <= kernel // 2:
        raise ValueError(
            f"max_pool2d: stride >= 1 and padding <= kernel / 2; got {stride} and {padding}"
        )
    if min(height, width) + 2 * padding < kernel:
        raise ValueError(f"max_pool2d: window {kernel} exceeds the padded {height}x{width} image")
