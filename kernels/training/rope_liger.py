"""Rotary embedding of Liger-Kernel, which turns queries and keys in place, in both directions.

It takes (batch, heads, positions, width) and works on the memory of (batch, positions, heads,
width), which is what the operation has; of the tables it reads one column a pair.
"""

from __future__ import annotations

import torch
from liger_kernel.transformers.functional import liger_rope

from ..backends.peers import Call, Peer
from ..backends.torch import Eager

Real = torch.Tensor

LACKS = {"rope_interleaved": "liger pairs i with i + width / 2, as rope_half does"}


def half(q: Real, k: Real, cos: Real, sin: Real) -> tuple[Real, Real]:
    by_head = (heads[None].transpose(1, 2) for heads in (q, k))
    turned = liger_rope(*by_head, cos, sin, rotary_dim=q.shape[-1])
    q, k = (heads.transpose(1, 2).squeeze(0) for heads in turned)  # views, in backward too
    return q, k


IN_PLACE = {"rotated_q": "q", "rotated_k": "k", "dq": "drotated_q", "dk": "drotated_k"}

prepare = Peer({"rope_half": Call(Eager(half, unread=["q", "k"]), in_place=IN_PLACE)})
