"""The norm of the gradients of a model: of every tensor, and of all of them together.

Gradients lie in one arena, tensor after tensor, as they do under a data-parallel trainer; `starts`
says where each begins, in elements, and `pieces` in pieces of 32768. Both are made before the
clock starts, and end with the ends. Squares are added in float32: beyond 1.8e19 they are infinite,
as they are in PyTorch.

The tensors are those of a real model: with learned positions a GPT-2 (biases, one matrix for
queries, keys and values, the table of tokens used twice), without them a Llama (no biases, a gated
feed-forward, keys and values narrower than the model, a head of its own).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import isqrt

import torch

from ..dtypes import FLOATS, DType, float32, int64
from ..operation import Direction, Directions, Fill, Tensor, operation
from ..shapes import MODELS

Real = torch.Tensor

PIECE = 32768
"""Elements that a block sums."""


def parameter_sizes(
    layers: int, hidden: int, features: int, keys: int, vocabulary: int, positions: int
) -> list[int]:
    """Elements of every tensor, in order; none is empty."""
    attended = features + 2 * keys
    if positions:
        norm = [features, features]
        attention = [features * attended, attended, features * features, features]
        feed_forward = [features * hidden, hidden, hidden * features, features]
        sizes = [vocabulary * features, positions * features]
        sizes += [*norm, *attention, *norm, *feed_forward] * layers + norm
    else:
        attention = [features * features, keys * features, keys * features, features * features]
        feed_forward = [features * hidden] * 3
        sizes = [vocabulary * features]
        sizes += [*attention, *feed_forward, features, features] * layers + [
            features,
            vocabulary * features,
        ]
    return [size for size in sizes if size]


def _given(values: Sequence[int]) -> Fill:
    return lambda tensor, generator: torch.tensor(values, device=generator.device)


def norms_of(sizes: Sequence[int]) -> Callable[[Real, Real, Real], tuple[Real, Real]]:
    """(g, starts, pieces) -> (the norm of every tensor, the norm of all)"""

    def forward(g: Real, starts: Real, pieces: Real) -> tuple[Real, Real]:
        squares = [part.square().sum() for part in torch.split(g, list(sizes))] if sizes else []
        each = torch.stack(squares) if squares else g.new_zeros(0)
        return each.sqrt(), each.sum().sqrt()[None]

    return forward


@operation(shapes=MODELS, dtypes=FLOATS, tier=3)
def grad_norm(
    layers: int,
    hidden: int,
    features: int,
    keys: int,
    vocabulary: int,
    positions: int,
    dtype: DType,
) -> Directions:
    """The norm of every gradient of a model and of all of them, from one arena."""
    sizes = parameter_sizes(layers, hidden, features, keys, vocabulary, positions)
    elements, count = sum(sizes), len(sizes)
    ends = [0, *accumulate(sizes)]
    pieces = [0, *accumulate(-(-size // PIECE) for size in sizes)]
    g = Tensor("g", (elements,), dtype)
    tables = [
        Tensor(name, (count + 1,), int64, fill=_given(values))
        for name, values in (("starts", ends), ("pieces", pieces))
    ]
    # Terms are positive and added in parts: the error grows with the length of a part.
    norms, norm = (
        Tensor(name, (length,), float32, reduces=isqrt(elements))
        for name, length in (("norms", count), ("norm", 1))
    )
    return Directions(Direction([g, *tables], [norms, norm], norms_of(sizes)))
