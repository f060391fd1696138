"""Norms of gradients in PyTorch, by what `clip_grad_norm_` calls for a list of tensors."""

from __future__ import annotations

import torch

from ..backends.torch import Eager
from .grad_norm import parameter_sizes

Real = torch.Tensor


def forward(
    g: Real,
    starts: torch.Tensor,
    pieces: torch.Tensor,
    *,
    layers: int,
    hidden: int,
    features: int,
    keys: int,
    vocabulary: int,
    positions: int,
) -> tuple[Real, Real]:
    sizes = parameter_sizes(layers, hidden, features, keys, vocabulary, positions)
    if not sizes:
        return g.new_zeros(0, dtype=torch.float32), g.new_zeros(1, dtype=torch.float32)
    norms = torch.stack(torch._foreach_norm(torch.split(g, sizes), 2, dtype=torch.float32))
    return norms, torch.linalg.vector_norm(norms)[None]


prepare = Eager(forward)
