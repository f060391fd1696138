"""Negative log-likelihood in PyTorch; smoothed, as its own cross_entropy composes it."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..backends.torch import Eager, PerOperation
from .cross_entropy import SMOOTHING

Real = torch.Tensor


def forward(x: Real, target: Real) -> Real:
    return functional.nll_loss(x, target, reduction="none")


def smoothed(x: Real, target: Real) -> Real:
    return (1 - SMOOTHING) * forward(x, target) - SMOOTHING * x.mean(-1)


prepare = PerOperation(
    {
        "nll_loss": Eager(forward, unread=["x"]),
        "nll_loss_smoothed": Eager(smoothed, unread=["x"]),
    }
)
