"""Dropout in PyTorch: the kernel that `torch.nn.functional.dropout` keeps for its backward.

PyTorch draws from a generator of its own, whose mask no other implementation can have. Forward is
therefore given ours, drawn outside the clock, and reads its byte an element where PyTorch writes
one: the bytes are the same, the drawing is not in the time. Masks are bytes throughout, since
PyTorch has no bits.
"""

from __future__ import annotations

from functools import partial

import torch

from ..backends.torch import Eager, PerOperation
from ..philox import SCALE, kept
from .dropout import Form, bit_mask, byte_mask, no_mask, unpacked

Real = torch.Tensor


def drawn(x: Real, state: torch.Tensor) -> tuple[Real, torch.Tensor]:
    return x, kept(state, x)


def dropped(x: Real, keep: torch.Tensor) -> Real:
    """x · keep / (1 − p), in one kernel."""
    y: Real = torch.ops.aten.native_dropout_backward(x, keep, SCALE)
    return y


def left(form: Form, dy: Real, given: torch.Tensor) -> tuple[Real, torch.Tensor]:
    return dy, unpacked(form, given, dy)


def _eager(form: Form) -> Eager:
    return Eager(dropped, given=drawn, backward=dropped, saved=partial(left, form))


prepare = PerOperation(
    {
        "dropout": _eager(no_mask),
        "dropout_byte_mask": _eager(byte_mask),
        "dropout_bit_mask": _eager(bit_mask),
    }
)
