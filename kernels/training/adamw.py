"""AdamW, step t, as `torch.optim.AdamW` defines it, with its default numbers:

    p <- p (1 - rate · weight_decay)                      weights decay apart from the gradient
    m <- beta1 · m + (1 - beta1) g
    v <- beta2 · v + (1 - beta2) g²
    p <- p - rate / (1 - beta1^t) · m / (sqrt(v / (1 - beta2^t)) + eps)

Arithmetic is in float32 and moments are used before they are rounded to the type they are stored
in. What is new is written beside what was read, so that a step can be run again: the bytes are
those of a step in place. A g² beyond the largest float32 is infinity, as in PyTorch.

The four kernels of a chain are the four lines above; PyTorch's eager step needs eight.
"""

from __future__ import annotations

from math import sqrt

import torch

from ..dtypes import DType, bfloat16, float32
from ..operation import Chain, Direction, Directions, Step, Tensor, operation, tensors
from ..shapes import ROWS, STEP_ROWS

Real = torch.Tensor

RATE, BETA1, BETA2, EPS, WEIGHT_DECAY = 1e-3, 0.9, 0.999, 1e-8, 1e-2
STEP = 100
"""t, where both bias corrections still count."""


def numbers() -> tuple[float, ...]:
    """(1 - rate · weight_decay, beta1, 1 - beta1, beta2, 1 - beta2, rate over the bias correction
    of m, one over the root of that of v, eps)."""
    rate, correction = RATE / (1 - BETA1**STEP), 1 / sqrt(1 - BETA2**STEP)
    return 1 - RATE * WEIGHT_DECAY, BETA1, 1 - BETA1, BETA2, 1 - BETA2, rate, correction, EPS


def decay(p: Real) -> Real:
    return p * (1 - RATE * WEIGHT_DECAY)


def first_moment(g: Real, m: Real) -> Real:
    return BETA1 * m + (1 - BETA1) * g


def second_moment(g: Real, v: Real) -> Real:
    return BETA2 * v + (1 - BETA2) * g * g


def step(p: Real, m: Real, v: Real) -> Real:
    root = torch.sqrt(v / (1 - BETA2**STEP))
    return p - RATE / (1 - BETA1**STEP) * m / (root + EPS)


def whole(p: Real, g: Real, m: Real, v: Real) -> tuple[Real, ...]:
    new_m, new_v = first_moment(g, m), second_moment(g, v)
    return step(decay(p), new_m, new_v), new_m, new_v


def squares(tensor: Tensor, generator: torch.Generator) -> Real:
    """What a second moment is of: never negative."""
    drawn = torch.randn(tensor.shape, generator=generator, device=generator.device)
    return drawn.square_()


def _chain(dtype: DType | None, *, gradient: str, decayed: str = "decayed") -> list[Step]:
    return [
        Step("adamw_decay", {"p": "p", "y": decayed}, dtype=dtype),
        Step("adamw_first_moment", {"g": gradient, "m": "m", "y": "new_m"}, dtype=dtype),
        Step("adamw_second_moment", {"g": gradient, "v": "v", "y": "new_v"}, dtype=dtype),
        Step("adamw_step", {"p": decayed, "m": "new_m", "v": "new_v", "y": "new_p"}, dtype=dtype),
    ]


@operation(shapes=ROWS, dtypes=[float32, bfloat16], chain=Chain(_chain(None, gradient="g")))
def adamw(rows: int, columns: int, dtype: DType) -> Directions:
    """AdamW, everything in one dtype: 28 bytes a parameter in float32, 14 in bfloat16."""
    p, g, m, new_p, new_m, new_v = tensors("p g m new_p new_m new_v", (rows, columns), dtype)
    (v,) = tensors("v", (rows, columns), dtype, fill=squares)
    return Directions(Direction([p, g, m, v], [new_p, new_m, new_v], whole))


@operation(
    shapes=ROWS,
    dtypes=[bfloat16],
    chain=Chain(
        [
            Step("cast_to_float32", {"x": "g", "y": "wide_g"}, dtype=bfloat16),
            *_chain(float32, gradient="wide_g"),
            Step("cast_to_bfloat16", {"x": "new_p", "y": "copy"}, dtype=float32),
        ]
    ),
)
def adamw_master(rows: int, columns: int, dtype: DType) -> Directions:
    """AdamW, float32 parameter and moments, bfloat16 gradient in and copy of the parameter out."""
    p, m, new_p, new_m, new_v = tensors("p m new_p new_m new_v", (rows, columns), float32)
    (v,) = tensors("v", (rows, columns), float32, fill=squares)
    g, copy = tensors("g copy", (rows, columns), bfloat16)

    def forward(p: Real, g: Real, m: Real, v: Real) -> tuple[Real, ...]:
        updated = whole(p, g, m, v)
        return *updated, updated[0]

    return Directions(Direction([p, g, m, v], [new_p, new_m, new_v, copy], forward))


@operation(shapes=STEP_ROWS, dtypes=[float32, bfloat16], tier=3)
def adamw_decay(rows: int, columns: int, dtype: DType) -> Directions:
    """AdamW's decay of the parameter alone: y = p (1 - rate · weight_decay)."""
    p, y = tensors("p y", (rows, columns), dtype)
    return Directions(Direction([p], [y], decay))


@operation(shapes=STEP_ROWS, dtypes=[float32, bfloat16], tier=3)
def adamw_first_moment(rows: int, columns: int, dtype: DType) -> Directions:
    """AdamW's first moment alone: y = beta1 · m + (1 - beta1) g."""
    g, m, y = tensors("g m y", (rows, columns), dtype)
    return Directions(Direction([g, m], [y], first_moment))


@operation(shapes=STEP_ROWS, dtypes=[float32, bfloat16], tier=3)
def adamw_second_moment(rows: int, columns: int, dtype: DType) -> Directions:
    """AdamW's second moment alone: y = beta2 · v + (1 - beta2) g²."""
    g, y = tensors("g y", (rows, columns), dtype)
    (v,) = tensors("v", (rows, columns), dtype, fill=squares)
    return Directions(Direction([g, v], [y], second_moment))


@operation(shapes=STEP_ROWS, dtypes=[float32, bfloat16], tier=3)
def adamw_step(rows: int, columns: int, dtype: DType) -> Directions:
    """AdamW's step alone, from moments that are there: y = p - rate · m / (sqrt(v) + eps)."""
    p, m, y = tensors("p m y", (rows, columns), dtype)
    (v,) = tensors("v", (rows, columns), dtype, fill=squares)
    return Directions(Direction([p, m, v], [y], step))
