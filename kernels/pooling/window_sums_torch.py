"""Pooling by sums over windows in PyTorch; backward as autograd calls it."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..backends.torch import Eager, PerOperation
from ..spec import Spec
from .max_pool2d_torch import rounds_sums
from .window_sums import window_means_backward

Real = torch.Tensor


def _mean(x: Real, *, kernel: int, stride: int, padding: int) -> Real:
    return functional.avg_pool2d(x, kernel, stride, padding)


def _mean_backward(
    dy: Real, *, height: int, width: int, kernel: int, stride: int, padding: int
) -> Real:
    return window_means_backward(dy, height, width, kernel, stride, padding)


def _adaptive(x: Real, *, out_height: int, out_width: int) -> Real:
    return functional.adaptive_avg_pool2d(x, (out_height, out_width))


def _like_x(dy: Real, *, height: int, width: int) -> tuple[Real, Real]:
    """dy, and an image of x's shape, of which only that is used."""
    return dy, dy.new_empty((*dy.shape[:2], height, width))


def _adaptive_backward(dy: Real, x: Real) -> Real:
    dx: Real = torch.ops.aten._adaptive_avg_pool2d_backward(dy, x)
    return dx


def _rounds_shared_sums(direction: str, spec: Spec) -> str | None:
    extents = ("height", "out_height"), ("width", "out_width")
    even = all(spec.dims[length] % spec.dims[windows] == 0 for length, windows in extents)
    if direction == "backward" and spec.target.kind == "cpu" and spec.dtype.bits == 16 and not even:
        return f"torch adds the gradients of overlapping windows in {spec.dtype} on the CPU"
    return None


def _norm(x: Real, *, kernel: int, stride: int) -> Real:
    return functional.lp_pool2d(x, 2.0, kernel, stride)


prepare = PerOperation(
    {
        "avg_pool2d": Eager(_mean, backward=_mean_backward, refuses=rounds_sums),
        "adaptive_avg_pool2d": Eager(
            _adaptive,
            backward=_adaptive_backward,
            saved=_like_x,
            refuses=_rounds_shared_sums,
        ),
        "lp_pool2d": Eager(_norm, refuses=rounds_sums),
    }
)
