"""2:4 sparsity in PyTorch: a sort of every four, and gathers."""

from __future__ import annotations

import torch

from ..backends.torch import Eager, PerOperation
from .quantize import in_blocks
from .sparse import GROUP

Real = torch.Tensor


def _places(groups: Real) -> Real:
    """Of the two largest magnitudes of every group, in order."""
    order = groups.abs().sort(dim=-1, descending=True, stable=True).indices
    return order[..., :2].sort(-1).values


def prune(x: Real) -> Real:
    groups = in_blocks(x, GROUP)
    mask = torch.zeros_like(groups, dtype=torch.bool).scatter(-1, _places(groups), True)
    return groups.where(mask, 0).flatten(-2)


def compress(x: Real) -> tuple[Real, Real]:
    groups = in_blocks(x, GROUP)
    places = _places(groups)
    nibbles = (places[..., 0] + 4 * places[..., 1]).to(torch.uint8)
    return groups.gather(-1, places).flatten(-2), nibbles[..., ::2] + 16 * nibbles[..., 1::2]


prepare = PerOperation(
    {
        "prune_2_4": Eager(prune),
        "compress_2_4": Eager(compress),
        "prune_compress_2_4": Eager(compress),
    }
)
