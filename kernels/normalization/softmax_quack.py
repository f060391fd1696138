"""Softmax of QuACK; backward is the function that its autograd calls."""

from __future__ import annotations

import torch
from quack import softmax
from quack.softmax import softmax_bwd

from ..backends.peers import Call, Peer, lacking
from ..backends.quack import ARCH
from ..backends.torch import Eager

Real = torch.Tensor

LACKS = lacking(["log_softmax", "scaled_masked_softmax", "causal_softmax"], "quack")


def forward(x: Real) -> Real:
    y: Real = softmax(x)
    return y


def backward(dy: Real, y: Real) -> Real:
    dx: Real = softmax_bwd(dy, y)
    return dx


prepare = Peer({"softmax": Call(Eager(forward, backward=backward))}, arch=ARCH)
