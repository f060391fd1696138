"""RMSNorm of Liger-Kernel; its backward writes dx over dy.

Of its casting modes the one that computes in float32 throughout, as the other implementations do;
"llama", its default, rounds the normalized row before it is scaled.
"""

from __future__ import annotations

import torch
from liger_kernel.transformers.functional import liger_rms_norm

from ..backends.liger import LONGEST
from ..backends.peers import Call, Peer
from ..backends.torch import Eager
from .rms_norm import EPS


def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = liger_rms_norm(x, weight, EPS, casting_mode="gemma")
    return y


prepare = Peer({"rms_norm": Call(Eager(forward), in_place={"dx": "dy"}, longest=LONGEST)})
