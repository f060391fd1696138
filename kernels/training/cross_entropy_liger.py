"""Cross-entropy of Liger-Kernel.

Where a gradient is wanted its forward writes it over the logits, for a dloss of 1, and its backward
scales it. It counts the targets on the host, and so waits for the device.
"""

from __future__ import annotations

from functools import partial

import torch
from liger_kernel.transformers.functional import liger_cross_entropy

from ..backends.peers import Call, Peer
from ..backends.torch import Eager
from .cross_entropy import IGNORED, SMOOTHING

Real = torch.Tensor


def refuses(direction: str, dtype: str) -> str | None:
    if direction == "backward":
        return "liger makes the gradient in forward: see cross_entropy_forward_backward"
    if dtype != "float32":
        return "liger's losses have the dtype of the logits; these are float32"
    return None


def forward(x: Real, target: Real, smoothing: float) -> Real:
    loss: Real = liger_cross_entropy(
        x, target, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing
    )
    return loss


def together(dloss: Real, x: Real, target: Real, smoothing: float) -> tuple[Real, Real]:
    logits = x.data.requires_grad_()
    with torch.enable_grad():
        loss = forward(logits, target, smoothing)
    return loss.detach(), torch.autograd.grad(loss, logits, dloss)[0]


def _calls(name: str, smoothing: float) -> dict[str, Call]:
    apart = Eager(partial(forward, smoothing=smoothing))
    both = Eager(partial(together, smoothing=smoothing))
    return {
        name: Call(apart, waits=True),
        f"{name}_forward_backward": Call(both, spoils=["x"], waits=True),
    }


prepare = Peer(_calls("cross_entropy", 0.0) | _calls("cross_entropy_smoothed", SMOOTHING))
