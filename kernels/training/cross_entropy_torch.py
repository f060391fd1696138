"""Cross-entropy in PyTorch, of logits cast to float32, as losses in float32 are written."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn import functional

from ..backends.torch import Eager, PerOperation
from .cross_entropy import SMOOTHING

Real = torch.Tensor


def forward(x: Real, target: Real, smoothing: float = 0.0) -> Real:
    return functional.cross_entropy(x.float(), target, reduction="none", label_smoothing=smoothing)


def smoothed(x: Real, target: Real) -> Real:
    return forward(x, target, SMOOTHING)


def together(dloss: Real, x: Real, target: Real, *, smoothing: float) -> tuple[Real, Real]:
    """Without autograd, as a fused layer that keeps no graph would be written in PyTorch."""
    logarithms = torch.log_softmax(x.float(), -1)
    own = logarithms.gather(1, target[:, None])
    loss = -(1 - smoothing) * own[:, 0]
    if smoothing:
        loss = loss - smoothing * logarithms.mean(-1)
    dx = logarithms.exp_()
    if smoothing:
        dx -= smoothing / x.shape[1]
    dx.scatter_add_(1, target[:, None], torch.full_like(own, smoothing - 1))
    return loss, (dx * dloss[:, None]).to(x.dtype)


prepare = PerOperation(
    {
        "cross_entropy": Eager(forward, graph=lambda x, target: forward(x, target)),
        "cross_entropy_smoothed": Eager(smoothed, graph=lambda x, target: smoothed(x, target)),
        "cross_entropy_forward_backward": Eager(partial(together, smoothing=0.0)),
        "cross_entropy_smoothed_forward_backward": Eager(partial(together, smoothing=SMOOTHING)),
    }
)
