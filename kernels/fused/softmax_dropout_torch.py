"""Softmax and dropout in PyTorch, as people write them; dropout as in `dropout_torch`.

Backward is the operators that autograd itself calls; they are given the softmax that forward keeps.
"""

from __future__ import annotations

import torch

from ..backends.torch import Eager
from ..normalization import softmax_torch as softmax
from ..philox import kept
from ..training.dropout_torch import drawn, dropped

Real = torch.Tensor


def forward(x: Real, keep: torch.Tensor) -> Real:
    return dropped(torch.softmax(x, -1), keep)


def saved(dy: Real, x: Real, lse: Real, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return dy, torch.softmax(x, -1), lse, kept(state, x)


def backward(dy: Real, weights: Real, lse: Real, keep: torch.Tensor) -> Real:
    return softmax.backward(dropped(dy, keep), weights)


prepare = Eager(forward, given=drawn, backward=backward, saved=saved)
