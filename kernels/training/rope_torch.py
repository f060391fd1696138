"""Rotary position embedding in PyTorch, as model code writes it.

Half: x · cos + rotate_half(x) · sin, with tables repeated. Interleaved: the pairs apart, turned and
stacked again. Both in float32, the dtype of the tables.
"""

from __future__ import annotations

import torch

from ..backends.torch import Eager, PerOperation

Real = torch.Tensor


def _half(x: Real, cos: Real, sin: Real) -> Real:
    a, b = x.chunk(2, -1)
    cos, sin = torch.cat((cos, cos), -1)[:, None], torch.cat((sin, sin), -1)[:, None]
    return (x * cos + torch.cat((-b, a), -1) * sin).to(x.dtype)


def half(q: Real, k: Real, cos: Real, sin: Real) -> tuple[Real, Real]:
    return _half(q, cos, sin), _half(k, cos, sin)


def _interleaved(x: Real, cos: Real, sin: Real) -> Real:
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).to(x.dtype)


def interleaved(q: Real, k: Real, cos: Real, sin: Real) -> tuple[Real, Real]:
    return _interleaved(q, cos, sin), _interleaved(k, cos, sin)


def half_back(dq: Real, dk: Real, cos: Real, sin: Real) -> tuple[Real, Real]:
    return half(dq, dk, cos, -sin)


def interleaved_back(dq: Real, dk: Real, cos: Real, sin: Real) -> tuple[Real, Real]:
    return interleaved(dq, dk, cos, -sin)


prepare = PerOperation(
    {
        "rope_half": Eager(half, backward=half_back),
        "rope_interleaved": Eager(interleaved, backward=interleaved_back),
    }
)
