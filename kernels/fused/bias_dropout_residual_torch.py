"""Bias, dropout and residual in PyTorch, one kernel after the other (see `dropout_torch`)."""

from __future__ import annotations

from functools import partial

import torch

from ..backends.torch import Eager, PerOperation
from ..philox import kept
from ..training.dropout import Form, bit_mask, byte_mask, no_mask
from ..training.dropout_torch import dropped, left

Real = torch.Tensor


def drawn(x: Real, bias: Real, residual: Real, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x, bias, residual, kept(state, x)


def forward(x: Real, bias: Real, residual: Real, keep: torch.Tensor) -> Real:
    return dropped(x + bias, keep) + residual


def backward(dy: Real, keep: torch.Tensor) -> tuple[Real, Real]:
    dx = dropped(dy, keep)
    return dx, dx.sum(0)


def _eager(form: Form) -> Eager:
    return Eager(forward, given=drawn, backward=backward, saved=partial(left, form))


prepare = PerOperation(
    {
        "bias_dropout_residual": _eager(no_mask),
        "bias_dropout_residual_byte_mask": _eager(byte_mask),
        "bias_dropout_residual_bit_mask": _eager(bit_mask),
    }
)
