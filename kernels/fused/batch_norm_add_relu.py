"""The end of a residual block, NCHW: y = max(batch_norm(x) + residual, 0).

Parameters and statistics are those of batch_norm. The norm is rounded to the dtype of the images
before the residual is added, as it is where layers run apart. Forward saves a bit per element, set
where relu passes (NaN passes): pixel i of a plane is bit i % 8 of its byte i / 8. The gradient of
residual is what passes. Layers that run apart keep y instead: in their backward it is 1 where a bit
is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from ..activation.pointwise import relu_forward
from ..dtypes import FLOATS, DType, float32, uint8
from ..normalization import batch_norm as norm
from ..operation import Chain, Direction, Directions, Step, Tensor, operation, tensors
from ..shapes import TRAINED_IMAGES
from .batch_norm_relu import BACKWARD_NORM, FLAT, FORWARD_NORM, parameters

Real = torch.Tensor
Tensors = tuple[torch.Tensor, ...]


def packed(passes: Real) -> Real:
    """Bits of (images, channels, height, width), a whole number of bytes a plane."""
    images, channels, height, width = passes.shape
    row_bytes = -(-height * width // 8)
    padding = (0, row_bytes * 8 - height * width)
    whole = torch.nn.functional.pad(passes.flatten(2), padding)
    weights = 2 ** torch.arange(8, device=passes.device)
    bits = whole.reshape(images, channels, row_bytes, 8) * weights
    return bits.sum(-1).to(torch.uint8)


def unpacked(mask: Real, shape: Sequence[int]) -> Real:
    """Whether each element of images of this shape passes."""
    bits = mask[..., None] >> torch.arange(8, device=mask.device, dtype=torch.uint8) & 1
    return bits.flatten(2)[..., : shape[2] * shape[3]].reshape(tuple(shape)).bool()


def passed(tensors: Mapping[str, Real]) -> Real:
    """A y whose sign is that of the one the bits were made of."""
    x = tensors["x"]
    return unpacked(tensors["mask"], x.shape).to(x.dtype)


def bounded(tensor: Tensor, generator: torch.Generator) -> Real:
    """-1 to 1: its norm, with the parameters' ranges, stays within ±2.3."""
    made = torch.empty(tensor.shape, device=generator.device)
    return made.uniform_(-1, 1, generator=generator)


def beyond(tensor: Tensor, generator: torch.Generator) -> Real:
    """Normal numbers, 2.5 further from zero: no rounding of the norm decides what passes."""
    made = torch.empty(tensor.shape, device=generator.device).normal_(generator=generator)
    return made + torch.where(made < 0, -2.5, 2.5)


def backward(dy: Real, x: Real, mask: Real, weight: Real, mean: Real, rstd: Real) -> Tensors:
    """dx, dresidual, dweight, dbias."""
    g = torch.where(unpacked(mask, x.shape), dy, 0.0)
    dx, dweight, dbias = norm.backward(g, x, weight, mean, rstd)
    return dx, g, dweight, dbias


@operation(
    shapes=TRAINED_IMAGES,
    dtypes=FLOATS,
    tier=3,
    chain=Chain(
        forward=[
            FORWARD_NORM,
            Step("add", {"a": "h", "b": "residual", "y": "sum"}, extents=FLAT),
            Step("relu", {"x": "sum", "y": "y"}, extents=FLAT),
        ],
        backward=[
            Step(
                *("relu", {"dy": "dy", "y": "y", "dx": "dresidual"}),
                direction="backward",
                extents=FLAT,
            ),
            replace(BACKWARD_NORM, operands={**BACKWARD_NORM.operands, "dy": "dresidual"}),
        ],
        kept={"y": passed},
    ),
)
def batch_norm_add_relu(
    images: int, channels: int, height: int, width: int, dtype: DType
) -> Directions:
    def forward(x: Real, residual: Real, *given: Real) -> Tensors:
        h, *others = norm.forward(x, *given)
        pre = dtype.rounded(h) + residual
        return relu_forward(pre), *others, packed(~(pre <= 0))

    values = images * height * width
    norm.require_values("batch_norm_add_relu", values)
    shape = (images, channels, height, width)
    x = Tensor("x", shape, dtype, fill=bounded)
    residual = Tensor("residual", shape, dtype, fill=beyond)
    dy, dresidual = tensors("dy dresidual", shape, dtype)
    y, dx = tensors("y dx", shape, dtype, reduces=values)
    mask = Tensor("mask", (images, channels, -(-height * width // 8)), uint8)
    of = norm.trained(channels, values)
    there = Direction(
        reads=[x, residual, *parameters(channels)],
        writes=[y, *of["updated"]],
        saves=[*of["saved"], mask],
        reference=forward,
        separable=False,
    )
    (weight,) = tensors("weight", (channels,), float32)
    back = Direction(
        reads=[dy, x, mask, weight, *of["saved"]],
        writes=[dx, dresidual, *of["gradients"]],
        reference=backward,
        separable=False,
    )
    return Directions(norm.twice(there, x, *of["saved"]), norm.twice(back, *back.reads))
