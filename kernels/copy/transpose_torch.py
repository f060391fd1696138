"""Transposition in PyTorch: a view, copied."""

from __future__ import annotations

import torch

from ..backends.torch import Eager, Function, PerOperation


def _copied(view: Function) -> Eager:
    return Eager(
        lambda x: view(x).clone(memory_format=torch.contiguous_format),
        into=lambda y, x: y.copy_(view(x)),
    )


prepare = PerOperation(
    {
        "transpose": _copied(lambda x: x.t()),
        "nchw_to_nhwc": _copied(lambda x: x.permute(0, 2, 3, 1)),
        "nhwc_to_nchw": _copied(lambda x: x.permute(0, 3, 1, 2)),
    }
)
