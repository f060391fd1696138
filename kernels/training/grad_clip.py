"""Gradients of a model scaled so that their norm, which is known by now, is at most 1.

y = g · min(1, 1 / (norm + 1e-6)), as `torch.nn.utils.clip_grad_norm_`: over the arena of grad_norm
in one launch. A norm that is NaN makes every gradient NaN.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType, float32
from ..operation import Direction, Directions, Tensor, operation, tensors
from ..shapes import MODELS
from .grad_norm import parameter_sizes

Real = torch.Tensor

LARGEST = 1.0


def clipped(g: Real, norm: Real) -> Real:
    return g * (LARGEST / (norm + 1e-6)).clamp(max=1.0)


def _norm(tensor: Tensor, generator: torch.Generator) -> Real:
    return torch.full(tensor.shape, 7.3, device=generator.device)


@operation(shapes=MODELS, dtypes=FLOATS, tier=3)
def grad_clip(
    layers: int,
    hidden: int,
    features: int,
    keys: int,
    vocabulary: int,
    positions: int,
    dtype: DType,
) -> Directions:
    """The gradients of a model, scaled to a norm of 1 where theirs is larger."""
    sizes = parameter_sizes(layers, hidden, features, keys, vocabulary, positions)
    g, y = tensors("g y", (sum(sizes),), dtype)
    norm = Tensor("norm", (1,), float32, fill=_norm)
    return Directions(Direction([g, norm], [y], clipped))
