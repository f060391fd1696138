"""Batch normalization of images: y = (x - mean) / sqrt(var + eps) · weight + bias, per channel.

As torch.nn.BatchNorm2d: eps = 1e-5 is added to the variance inside the square root, parameters and
statistics are float32 whatever the images are, and y is rounded once. Inference takes mean and
variance from the running statistics. Training takes those of the images, with the biased variance,
and moves the running ones by momentum = 0.1 towards them, with the unbiased variance; it saves mean
and rstd. PyTorch overwrites the running statistics, here the new ones are outputs of their own.
Training needs more than one value per channel and refuses images without, as PyTorch does.

Images are NCHW, or NHWC in the operations whose name says so. A channel is spread over all images
and over many blocks, none of which could keep it while it waits for the others: in training it is
read for its statistics and read again, and so are the values per channel. That is the schedule, 3
passes forward and 5 backward where 2 and 3 must move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ..dtypes import FLOATS, DType, float32
from ..operation import Direction, Directions, Tensor, operation, tensors
from ..shapes import (
    CHANNEL_IMAGES,
    CHANNEL_LAST_IMAGES,
    TRAINED_IMAGES,
    TRAINED_LAST_IMAGES,
)

EPS = 1e-5
MOMENTUM = 0.1

Real = torch.Tensor
Tensors = tuple[torch.Tensor, ...]
_OVER = (0, 2, 3)


def wide(parameter: Real) -> Real:
    """A value per channel, over NCHW images."""
    return parameter[:, None, None]


def statistics(x: Real) -> tuple[Real, Real]:
    """Mean and biased variance per channel of NCHW images; both NaN where some x is not finite."""
    mean = x.mean(_OVER)
    apart = x - wide(mean)
    return mean + apart.mean(_OVER), (apart * apart).mean(_OVER)


def normalize(x: Real, mean: Real, rstd: Real, weight: Real, bias: Real) -> Real:
    return (x - wide(mean)) * wide(rstd * weight) + wide(bias)


def inference(x: Real, weight: Real, bias: Real, running_mean: Real, running_var: Real) -> Real:
    return normalize(x, running_mean, torch.rsqrt(running_var + EPS), weight, bias)


def forward(x: Real, weight: Real, bias: Real, running_mean: Real, running_var: Real) -> Tensors:
    """y, updated_mean, updated_var, mean, rstd. No gradient comes back through the updated ones."""
    mean, var = statistics(x)
    rstd = torch.rsqrt(var + EPS)
    values = x.numel() // x.shape[1]
    updated_mean = (1 - MOMENTUM) * running_mean + MOMENTUM * mean.detach()
    updated_var = (1 - MOMENTUM) * running_var + MOMENTUM * (var.detach() * values / (values - 1))
    return normalize(x, mean, rstd, weight, bias), updated_mean, updated_var, mean, rstd


def backward(dy: Real, x: Real, weight: Real, mean: Real, rstd: Real) -> Tensors:
    """dx, dweight, dbias."""
    xhat = (x - wide(mean)) * wide(rstd)
    projected = dy * xhat
    along = xhat * wide(projected.mean(_OVER))
    dx = (dy - wide(dy.mean(_OVER)) - along) * wide(rstd * weight)
    return dx, projected.sum(_OVER), dy.sum(_OVER)


def positive(tensor: Tensor, generator: torch.Generator) -> Real:
    """Variances: 0.5 to 2."""
    made = torch.empty(tensor.shape, device=generator.device)
    return made.uniform_(0.5, 2, generator=generator)


def parameters(channels: int) -> list[Tensor]:
    """weight, bias, running_mean, running_var."""
    mean = tensors("weight bias running_mean", (channels,), float32)
    return [*mean, Tensor("running_var", (channels,), float32, fill=positive)]


def trained(channels: int, values: int) -> dict[str, list[Tensor]]:
    """What training has per channel, of `values` values each: `updated`, `saved`, `gradients`."""
    named = {
        "updated": "updated_mean updated_var",
        "saved": "mean rstd",
        "gradients": "dweight dbias",
    }
    return {k: tensors(names, (channels,), float32, reduces=values) for k, names in named.items()}


def require_values(name: str, values: int) -> None:
    """Raises ValueError where a channel has too few values to be normalized by them."""
    if values < 2:
        raise ValueError(f"{name}: more than one value per channel in training; got {values}")


def twice(direction: Direction, *again: Tensor) -> Direction:
    """`direction` with its schedule: each of `again` is read twice."""
    bytes_ = direction.traffic + sum(tensor.traffic for tensor in again)
    return replace(direction, schedule_bytes=bytes_)


def _nhwc(tensor: Real) -> Real:
    return tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor


def _nchw(tensor: Real) -> Real:
    return tensor.permute(0, 3, 1, 2) if tensor.dim() == 4 else tensor


def _last(f: Callable[..., Real | Tensors]) -> Callable[..., Real | Tensors]:
    """The same of images whose channels are last."""

    def of_last(*given: Real) -> Real | Tensors:
        made = f(*map(_nchw, given))
        return _nhwc(made) if isinstance(made, torch.Tensor) else tuple(map(_nhwc, made))

    return of_last


def _shape(
    images: int, channels: int, height: int, width: int, last: bool
) -> tuple[int, int, int, int]:
    return (images, height, width, channels) if last else (images, channels, height, width)


def _running(
    images: int, channels: int, height: int, width: int, dtype: DType, *, last: bool = False
) -> Directions:
    shape = _shape(images, channels, height, width, last)
    x, y = tensors("x y", shape, dtype)
    reads = [x, *parameters(channels)]
    return Directions(Direction(reads, [y], _last(inference) if last else inference))


def _training(
    images: int, channels: int, height: int, width: int, dtype: DType, *, last: bool = False
) -> Directions:
    values = images * height * width
    require_values("batch_norm", values)
    shape = _shape(images, channels, height, width, last)
    x, dy = tensors("x dy", shape, dtype)
    y, dx = tensors("y dx", shape, dtype, reduces=values)
    of = trained(channels, values)
    there = Direction(
        reads=[x, *parameters(channels)],
        writes=[y, *of["updated"]],
        saves=of["saved"],
        reference=_last(forward) if last else forward,
        separable=False,
    )
    back = Direction(
        reads=[dy, x, *tensors("weight", (channels,), float32), *of["saved"]],
        writes=[dx, *of["gradients"]],
        reference=_last(backward) if last else backward,
        separable=False,
    )
    return Directions(twice(there, x, *of["saved"]), twice(back, *back.reads))


@operation(shapes=CHANNEL_IMAGES, dtypes=FLOATS)
def batch_norm_inference(
    images: int, channels: int, height: int, width: int, dtype: DType
) -> Directions:
    """y = (x - running_mean) / sqrt(running_var + eps) · weight + bias, per channel of NCHW."""
    return _running(images, channels, height, width, dtype)


@operation(shapes=CHANNEL_LAST_IMAGES, dtypes=FLOATS)
def batch_norm_inference_nhwc(
    images: int, channels: int, height: int, width: int, dtype: DType
) -> Directions:
    """y = (x - running_mean) / sqrt(running_var + eps) · weight + bias, per channel of NHWC."""
    return _running(images, channels, height, width, dtype, last=True)


@operation(shapes=TRAINED_IMAGES, dtypes=FLOATS)
def batch_norm(images: int, channels: int, height: int, width: int, dtype: DType) -> Directions:
    """y = (x - mean) / sqrt(var + eps) · weight + bias, mean and var those of a channel of NCHW."""
    return _training(images, channels, height, width, dtype)


@operation(shapes=TRAINED_LAST_IMAGES, dtypes=FLOATS)
def batch_norm_nhwc(
    images: int, channels: int, height: int, width: int, dtype: DType
) -> Directions:
    """y = (x - mean) / sqrt(var + eps) · weight + bias, mean and var those of a channel of NHWC."""
    return _training(images, channels, height, width, dtype, last=True)
