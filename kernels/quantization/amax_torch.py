"""The largest magnitude of a tensor in PyTorch."""

from __future__ import annotations

import torch

from ..backends.torch import Eager


def forward(x: torch.Tensor) -> torch.Tensor:
    if not x.numel():  # of nothing there is no maximum
        return torch.zeros(1, device=x.device)
    largest: torch.Tensor = torch.linalg.vector_norm(x, torch.inf)
    return largest.float().reshape(1)


prepare = Eager(forward)
