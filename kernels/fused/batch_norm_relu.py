"""Batch normalization of NCHW images, then relu: y = max((x - mean) · rstd · weight + bias, 0).

Parameters, statistics and their running averages are those of batch_norm, -0 and NaN are those of
relu. Backward keeps nothing of y: what passes relu is decided again from x, by the sign of one
float32 subtraction (x - mean) and one fused multiply-add, (rstd · weight) and bias, which any two
kernels agree on.
"""

from __future__ import annotations

import torch

from ..activation.pointwise import relu_backward, relu_forward
from ..dtypes import FLOATS, DType, float32
from ..normalization import batch_norm as norm
from ..operation import Chain, Direction, Directions, Step, Tensor, operation, tensors
from ..shapes import CHANNEL_IMAGES, TRAINED_IMAGES

Real = torch.Tensor
Tensors = tuple[torch.Tensor, ...]

FLAT = {"rows": ("images",), "columns": ("channels", "height", "width")}
"""Extents of what runs over images element by element."""

_GIVEN = ("x", "weight", "bias", "running_mean", "running_var")
_UPDATED, SAVED = ("updated_mean", "updated_var"), ("mean", "rstd")

FORWARD_NORM = Step(
    "batch_norm", {name: name for name in (*_GIVEN, *_UPDATED, *SAVED)} | {"y": "h"}
)
BACKWARD_NORM = Step(
    "batch_norm",
    {name: name for name in ("x", "weight", *SAVED, "dx", "dweight", "dbias")} | {"dy": "dh"},
    direction="backward",
)
RUNNING = frozenset({"running_mean", "running_var"})


def away_from_zero(tensor: Tensor, generator: torch.Generator) -> Real:
    """Normal numbers, 1/8 further from zero.

    With `weights` and `biases` no element is so near to the kink of relu that roundings of the
    statistics decide on which side it is: both sides would be right.
    """
    made = torch.empty(tensor.shape, device=generator.device).normal_(generator=generator)
    return made + torch.where(made < 0, -0.125, 0.125)


def weights(tensor: Tensor, generator: torch.Generator) -> Real:
    made = torch.empty(tensor.shape, device=generator.device)
    return made.uniform_(0.75, 1.25, generator=generator)


def biases(tensor: Tensor, generator: torch.Generator) -> Real:
    made = torch.empty(tensor.shape, device=generator.device)
    return made.uniform_(-0.0625, 0.0625, generator=generator)


def parameters(channels: int) -> list[Tensor]:
    """weight, bias, running_mean, running_var."""
    _, _, *running = norm.parameters(channels)
    return [*_affine(channels), *running]


def _affine(channels: int) -> list[Tensor]:
    weight = Tensor("weight", (channels,), float32, fill=weights)
    return [weight, Tensor("bias", (channels,), float32, fill=biases)]


def _pre(x: Real, weight: Real, bias: Real, mean: Real, rstd: Real) -> Real:
    """What relu is given, with the sign that float32 gives it: the rest is exact in float64."""
    apart = (x - norm.wide(mean)).float().double()
    return apart * norm.wide((rstd * weight).float().double()) + norm.wide(bias)


def inference(x: Real, weight: Real, bias: Real, running_mean: Real, running_var: Real) -> Real:
    y = relu_forward(norm.inference(x, weight, bias, running_mean, running_var))
    assert isinstance(y, torch.Tensor)
    return y


def forward(x: Real, weight: Real, bias: Real, running_mean: Real, running_var: Real) -> Tensors:
    """y, updated_mean, updated_var, mean, rstd."""
    h, *others = norm.forward(x, weight, bias, running_mean, running_var)
    return relu_forward(h), *others


def backward(dy: Real, x: Real, weight: Real, bias: Real, mean: Real, rstd: Real) -> Tensors:
    """dx, dweight, dbias."""
    g = relu_backward(dy, _pre(x, weight, bias, mean, rstd))
    return norm.backward(g, x, weight, mean, rstd)


@operation(
    shapes=CHANNEL_IMAGES,
    dtypes=FLOATS,
    chain=Chain(
        forward=[
            Step("batch_norm_inference", {name: name for name in _GIVEN} | {"y": "h"}),
            Step("relu", {"x": "h", "y": "y"}, extents=FLAT),
        ]
    ),
)
def batch_norm_inference_relu(
    images: int, channels: int, height: int, width: int, dtype: DType
) -> Directions:
    """y = max(batch_norm_inference(x), 0)."""
    shape = (images, channels, height, width)
    x, y = Tensor("x", shape, dtype, fill=away_from_zero), Tensor("y", shape, dtype)
    return Directions(Direction([x, *parameters(channels)], [y], inference))


@operation(
    shapes=TRAINED_IMAGES,
    dtypes=FLOATS,
    chain=Chain(
        forward=[FORWARD_NORM, Step("relu", {"x": "h", "y": "y"}, extents=FLAT)],
        backward=[
            Step("relu", {"dy": "dy", "y": "y", "dx": "dh"}, direction="backward", extents=FLAT),
            BACKWARD_NORM,
        ],
        idle=RUNNING,
    ),
)
def batch_norm_relu(
    images: int, channels: int, height: int, width: int, dtype: DType
) -> Directions:
    """y = max(batch_norm(x), 0), by the statistics of x; backward recomputes the mask from x."""
    values = images * height * width
    norm.require_values("batch_norm_relu", values)
    shape = (images, channels, height, width)
    x, dy = Tensor("x", shape, dtype, fill=away_from_zero), Tensor("dy", shape, dtype)
    y, dx = tensors("y dx", shape, dtype, reduces=values)
    of = norm.trained(channels, values)
    there = Direction(
        reads=[x, *parameters(channels)],
        writes=[y, *of["updated"]],
        saves=of["saved"],
        reference=forward,
        separable=False,
    )
    back = Direction(
        reads=[dy, x, *_affine(channels), *of["saved"]],
        writes=[dx, *of["gradients"]],
        reference=backward,
        separable=False,
    )
    return Directions(norm.twice(there, x, *of["saved"]), norm.twice(back, *back.reads))
