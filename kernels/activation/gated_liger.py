"""SwiGLU of Liger-Kernel; its backward writes both gradients over gate and up."""

from __future__ import annotations

import torch
from liger_kernel.transformers.functional import liger_swiglu

from ..backends.liger import LONGEST
from ..backends.peers import Call, Peer, lacking
from ..backends.torch import Eager

LACKS = {
    "geglu": "liger's geglu is the form with tanh; this one is the form with erf",
    **lacking(["reglu"], "liger"),
}


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = liger_swiglu(gate, up)
    return y


IN_PLACE = {"dgate": "gate", "dup": "up"}

prepare = Peer({"swiglu": Call(Eager(swiglu), in_place=IN_PLACE, longest=LONGEST)})
