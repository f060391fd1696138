"""LayerNorm of QuACK, whose forward takes weight and bias in float32: made outside the clock."""

from __future__ import annotations

import torch
from quack.rmsnorm import layernorm_bwd, layernorm_fwd

from ..backends.peers import Call, Peer
from ..backends.quack import ARCH
from ..backends.torch import Eager
from .layer_norm import EPS

Real = torch.Tensor


def given(x: Real, weight: Real, bias: Real) -> tuple[Real, Real, Real]:
    return x, weight.float(), bias.float()


def forward(x: Real, weight: Real, bias: Real) -> Real:
    y: Real = layernorm_fwd(x, weight, bias=bias, eps=EPS)
    return y


def backward(dy: Real, x: Real, weight: Real, mean: Real, rstd: Real) -> tuple[Real, ...]:
    gradients: tuple[Real, ...] = layernorm_bwd(x, weight, dy, rstd, mean)
    return gradients


prepare = Peer({"layer_norm": Call(Eager(forward, given=given, backward=backward))}, arch=ARCH)
