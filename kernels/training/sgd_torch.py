"""SGD in PyTorch, call by call as its eager optimizer runs, on new tensors."""

from __future__ import annotations

import torch

from ..backends.torch import Eager, PerOperation
from .sgd import MOMENTUM, RATE

Real = torch.Tensor


def step(p: Real, g: Real) -> Real:
    return torch.add(p, g, alpha=-RATE)


def moved(g: Real, b: Real) -> Real:
    return b.mul(MOMENTUM).add_(g)


def step_with_momentum(p: Real, g: Real, b: Real) -> tuple[Real, Real]:
    new_b = moved(g, b)
    return step(p, new_b), new_b


prepare = PerOperation(
    {
        "sgd": Eager(step, into=lambda y, p, g: torch.add(p, g, alpha=-RATE, out=y)),
        "momentum": Eager(moved),
        "sgd_momentum": Eager(step_with_momentum),
    }
)
