"""LayerNorm of Liger-Kernel."""

from __future__ import annotations

import torch
from liger_kernel.transformers.functional import liger_layer_norm

from ..backends.liger import LONGEST
from ..backends.peers import Call, Peer
from ..backends.torch import Eager
from .layer_norm import EPS


def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = liger_layer_norm(x, weight, bias, EPS)
    return y


prepare = Peer({"layer_norm": Call(Eager(forward, unread=["bias"]), longest=LONGEST)})
