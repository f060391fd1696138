"""Stochastic gradient descent as `torch.optim.SGD` defines it, without weight decay:

    b <- momentum · b + g        no dampening, not Nesterov's
    p <- p - rate · b            or rate · g without momentum

Arithmetic is in float32. What is new is written beside what was read, so that a step can be run
again: the bytes are those of a step in place.
"""

from __future__ import annotations

import torch

from ..dtypes import DType, float32
from ..operation import Chain, Direction, Directions, Step, operation, tensors
from ..shapes import ROWS, STEP_ROWS

Real = torch.Tensor

RATE, MOMENTUM = 1e-3, 0.9


def step(p: Real, direction: Real) -> Real:
    return p - RATE * direction


def moved(g: Real, b: Real) -> Real:
    return MOMENTUM * b + g


def step_with_momentum(p: Real, g: Real, b: Real) -> tuple[Real, Real]:
    new_b = moved(g, b)
    return step(p, new_b), new_b


@operation(shapes=ROWS, dtypes=[float32])
def sgd(rows: int, columns: int, dtype: DType) -> Directions:
    """SGD: y = p - rate · g."""
    p, g, y = tensors("p g y", (rows, columns), dtype)
    return Directions(Direction([p, g], [y], step))


@operation(shapes=STEP_ROWS, dtypes=[float32], tier=3)
def momentum(rows: int, columns: int, dtype: DType) -> Directions:
    """The momentum of SGD alone: y = momentum · b + g."""
    g, b, y = tensors("g b y", (rows, columns), dtype)
    return Directions(Direction([g, b], [y], moved))


@operation(
    shapes=ROWS,
    dtypes=[float32],
    chain=Chain(
        [
            Step("momentum", {"g": "g", "b": "b", "y": "new_b"}),
            Step("sgd", {"p": "p", "g": "new_b", "y": "new_p"}),
        ]
    ),
)
def sgd_momentum(rows: int, columns: int, dtype: DType) -> Directions:
    """SGD with momentum, in one pass."""
    p, g, b, new_p, new_b = tensors("p g b new_p new_b", (rows, columns), dtype)
    return Directions(Direction([p, g, b], [new_p, new_b], step_with_momentum))
