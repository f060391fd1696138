"""Pooling of NHWC images in PyTorch, which calls a permuted view of them channels_last."""

from __future__ import annotations

import torch

from ..backends.torch import Eager, PerOperation
from . import max_pool2d_torch as maxima
from .window_sums import window_means_backward

Real = torch.Tensor


def _nchw(nhwc: Real) -> Real:
    return nhwc.permute(0, 3, 1, 2)


def _nhwc(nchw: Real) -> Real:
    return nchw.permute(0, 2, 3, 1).contiguous()


def _mean(x: Real, *, kernel: int, stride: int, padding: int) -> Real:
    return _nhwc(torch.nn.functional.avg_pool2d(_nchw(x), kernel, stride, padding))


def _mean_backward(
    dy: Real, *, height: int, width: int, kernel: int, stride: int, padding: int
) -> Real:
    return _nhwc(window_means_backward(_nchw(dy), height, width, kernel, stride, padding))


def _maximum(x: Real, *, kernel: int, stride: int, padding: int) -> Real:
    return _nhwc(maxima.forward(_nchw(x), kernel=kernel, stride=stride, padding=padding))


def _saved(
    dy: Real,
    offset: Real,
    *,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    padding: int,
) -> tuple[Real, ...]:
    windows = {"kernel": kernel, "stride": stride, "padding": padding}
    made = maxima.saved(_nchw(dy), _nchw(offset), height=height, width=width, **windows)
    return tuple(value.contiguous(memory_format=torch.channels_last) for value in made)


def _maximum_backward(
    dy: Real, x: Real, index: Real, *, kernel: int, stride: int, padding: int
) -> Real:
    return _nhwc(maxima.backward(dy, x, index, kernel=kernel, stride=stride, padding=padding))


prepare = PerOperation(
    {
        "avg_pool2d_nhwc": Eager(_mean, backward=_mean_backward, refuses=maxima.rounds_sums),
        "max_pool2d_nhwc": Eager(
            _maximum, backward=_maximum_backward, saved=_saved, refuses=maxima.rounds_sums
        ),
    }
)
