"""Strided and gathered reads in PyTorch."""

from __future__ import annotations

import torch

from ..backends.torch import Eager, PerOperation


def _strided(stride: int) -> Eager:
    return Eager(lambda x: x[:, ::stride].contiguous(), into=lambda y, x: y.copy_(x[:, ::stride]))


def _gathered(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.view(-1).index_select(0, index.view(-1)).view(x.shape)


def _gathered_into(y: torch.Tensor, x: torch.Tensor, index: torch.Tensor) -> None:
    torch.index_select(x.view(-1), 0, index.view(-1), out=y.view(-1))


_GATHER = Eager(_gathered, into=_gathered_into)

prepare = PerOperation(
    {
        "strided_read_2": _strided(2),
        "strided_read_8": _strided(8),
        "gather_int32": _GATHER,
        "gather_int64": _GATHER,
    }
)
