"""Max-pooling in PyTorch. Its indices are 8 bytes each and count from the start of the image."""

from __future__ import annotations

import torch

from ..backends.torch import Eager
from ..spec import Spec


def forward(x: torch.Tensor, *, kernel: int, stride: int, padding: int) -> torch.Tensor:
    y: torch.Tensor = torch.nn.functional.max_pool2d(x, kernel, stride, padding)
    return y


def saved(
    dy: torch.Tensor,
    offset: torch.Tensor,
    *,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    padding: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dy, an image of x's shape (only its shape is used), and torch's indices of the maxima.

    For 255, which is no place (bias_relu_max_pool2d), some element of the window: relu, whose
    backward follows there, gives none of these a gradient.
    """
    images, channels, out_h, out_w = dy.shape
    inside = (offset // kernel).clamp_(max=kernel - 1)
    row = torch.arange(out_h, device=dy.device)[:, None] * stride - padding + inside
    column = torch.arange(out_w, device=dy.device) * stride - padding + offset % kernel
    index = row.clamp_(0, height - 1) * width + column.clamp_(0, width - 1)
    return dy, dy.new_empty((images, channels, height, width)), index


def backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    index: torch.Tensor,
    *,
    kernel: int,
    stride: int,
    padding: int,
) -> torch.Tensor:
    """What autograd calls for max_pool2d, without an x that backward does not read."""
    windows = [kernel, kernel], [stride, stride], [padding, padding], [1, 1]
    dx: torch.Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
        dy, x, *windows, False, index
    )
    return dx


def rounds_sums(direction: str, spec: Spec) -> str | None:
    overlap = spec.dims["kernel"] > spec.dims["stride"]
    if direction == "backward" and spec.target.kind == "cpu" and overlap and spec.dtype.bits == 16:
        return f"torch adds the gradients of overlapping windows in {spec.dtype} on the CPU"
    return None


prepare = Eager(forward, backward=backward, saved=saved, refuses=rounds_sums)
