"""Cross-entropy of QuACK; backward is the function that its autograd calls."""

from __future__ import annotations

import torch
from quack import cross_entropy
from quack.cross_entropy import cross_entropy_bwd

from ..backends.peers import Call, Peer, lacking
from ..backends.quack import ARCH
from ..backends.torch import Eager
from ..spec import Spec
from .cross_entropy import IGNORED

Real = torch.Tensor

LACKS = {
    "cross_entropy_forward_backward": "quack's one pass is for a dloss of 1; here it is an input",
    **lacking(["cross_entropy_smoothed", "cross_entropy_smoothed_forward_backward"], "quack"),
}


def forward(x: Real, target: Real) -> Real:
    loss: Real = cross_entropy(x, target, ignore_index=IGNORED, reduction="none")
    return loss


def backward(dloss: Real, x: Real, target: Real, lse: Real) -> Real:
    dx: Real = cross_entropy_bwd(x, target, dloss, lse, ignore_index=IGNORED)
    return dx


def _refuses(direction: str, spec: Spec) -> str | None:
    vector = 128 // spec.dtype.bits
    if direction == "backward" and spec.dims["columns"] % vector:
        return f"quack's backward takes a multiple of {vector} classes"
    return None


CALL = Call(Eager(forward, backward=backward, refuses=_refuses))
prepare = Peer({"cross_entropy": CALL}, arch=ARCH)
