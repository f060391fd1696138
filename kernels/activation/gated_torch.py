"""Gated activations in PyTorch: the activation, then the product."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..backends.torch import Eager, PerOperation

Real = torch.Tensor


def _swiglu(gate: Real, up: Real) -> Real:
    return functional.silu(gate) * up


def _geglu(gate: Real, up: Real) -> Real:
    return functional.gelu(gate) * up


def _reglu(gate: Real, up: Real) -> Real:
    return torch.relu(gate) * up


prepare = PerOperation({"swiglu": Eager(_swiglu), "geglu": Eager(_geglu), "reglu": Eager(_reglu)})
