"""Group normalization of Liger-Kernel, forward."""

from __future__ import annotations

import torch
from liger_kernel.transformers.functional import liger_group_norm

from ..backends.peers import Call, Peer, lacking
from ..backends.torch import Eager
from .group_norm import EPS

LACKS = lacking(["instance_norm"], "liger")


def refuses(direction: str, dtype: str) -> str | None:
    if direction == "backward":
        return "liger adds dweight and dbias in no fixed order: no two runs agree byte for byte"
    return None


def forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, groups: int
) -> torch.Tensor:
    y: torch.Tensor = liger_group_norm(x, weight, bias, x.shape[1], groups, EPS)
    return y


prepare = Peer({"group_norm": Call(Eager(forward))})
