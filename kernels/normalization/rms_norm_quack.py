"""RMSNorm of QuACK; backward by its autograd."""

from __future__ import annotations

import torch
from quack import rmsnorm

from ..backends.peers import Call, Peer
from ..backends.quack import ARCH
from ..backends.torch import Eager
from .rms_norm import EPS


def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = rmsnorm(x, weight, eps=EPS)
    return y


prepare = Peer({"rms_norm": Call(Eager(forward))}, arch=ARCH)
