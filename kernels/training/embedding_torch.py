"""Embedding in PyTorch. Its backward is the one of a dense table, here of the rows that occur."""

from __future__ import annotations

import torch
from torch.nn import functional

from ..backends.torch import Eager
from ..spec import Spec

Real = torch.Tensor


def row_of_tokens(
    dy: Real, order: torch.Tensor, slots: torch.Tensor, before: Real
) -> tuple[Real, torch.Tensor, Real]:
    return dy, torch.empty_like(order).scatter_(0, order, slots.long()), before


def backward(dy: Real, index: torch.Tensor, before: Real) -> Real:
    rows = len(before)
    summed: Real = torch.ops.aten.embedding_dense_backward(dy, index, rows, -1, False)
    return before + summed


def _rounds(direction: str, spec: Spec) -> str | None:
    halves = direction == "backward" and spec.dtype.bits == 16
    if halves and spec.target.kind == "cpu":
        return f"torch adds the gradients of repeated tokens in {spec.dtype} on the CPU"
    return None


prepare = Eager(
    functional.embedding,
    into=lambda y, index, table: torch.index_select(table, 0, index, out=y),
    backward=backward,
    saved=row_of_tokens,
    refuses=_rounds,
)
