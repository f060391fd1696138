"""The copy family in PyTorch, into given outputs wherever it publicly takes them."""

from __future__ import annotations

import torch

from ..backends.torch import Eager, PerOperation
from .stream import FACTOR, FILL_VALUE

prepare = PerOperation(
    {
        "copy": Eager(torch.clone, into=lambda y, x: y.copy_(x)),
        "scale": Eager(lambda x: x * FACTOR, into=lambda y, x: torch.mul(x, FACTOR, out=y)),
        "add": Eager(torch.add, into=lambda y, a, b: torch.add(a, b, out=y)),
        "triad": Eager(
            lambda a, b: torch.add(a, b, alpha=FACTOR),
            into=lambda y, a, b: torch.add(a, b, alpha=FACTOR, out=y),
        ),
        "fill": Eager(into=lambda y: y.fill_(FILL_VALUE)),
        "read": Eager(
            lambda x: torch.sum(x, 1, dtype=torch.float32),
            into=lambda sums, x: torch.sum(x, 1, dtype=torch.float32, out=sums),
        ),
    }
)
