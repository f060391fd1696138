"""Residual add and RMSNorm of FlashInfer: the sum over the residual, the result over x."""

from __future__ import annotations

import torch
from flashinfer.norm import fused_add_rmsnorm

from ..backends.flashinfer import ARCH, refuses
from ..backends.peers import Call, Peer
from ..backends.torch import Eager
from ..normalization.rms_norm import EPS

__all__ = ["prepare", "refuses"]

Real = torch.Tensor


def into(h: Real, y: Real, x: Real, residual: Real, weight: Real) -> None:
    fused_add_rmsnorm(x, residual, weight, EPS)


CALL = Call(Eager(into=into), in_place={"h": "residual", "y": "x"})
prepare = Peer({"add_rms_norm": CALL}, arch=ARCH)
