"""Residual add and RMSNorm of Liger-Kernel, as in `rms_norm_liger.py`; dx is written over dy."""

from __future__ import annotations

import torch
from liger_kernel.transformers.functional import liger_fused_add_rms_norm

from ..backends.liger import LONGEST
from ..backends.peers import Call, Peer
from ..backends.torch import Eager
from ..normalization.rms_norm import EPS

Real = torch.Tensor


def forward(x: Real, residual: Real, weight: Real) -> tuple[Real, Real]:
    y, h = liger_fused_add_rms_norm(x, residual, weight, EPS, casting_mode="gemma")
    return h, y


def graph(h: Real, weight: Real) -> tuple[Real, Real]:
    """From h on, which is the sum where the residual is 0."""
    h, y = forward(h, torch.zeros_like(h), weight)
    return y, h


prepare = Peer(
    {"add_rms_norm": Call(Eager(forward, graph=graph), in_place={"dx": "dy"}, longest=LONGEST)}
)
