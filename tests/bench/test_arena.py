"""The arena: aligned, apart, within its budget, given back."""

from __future__ import annotations

import pytest
import torch
from membound.bench.arena import Arena, OutOfBudget
from membound.kernels.dtypes import bfloat16, float32
from membound.kernels.operation import Tensor
from membound.kernels.target import MIB


def arena(budget: int = 512 * MIB) -> Arena:
    return Arena(torch.device("cpu"), budget)


def test_tensors_are_aligned_and_do_not_overlap() -> None:
    memory = arena()
    taken = [memory.take(Tensor(f"t{i}", (3, i + 1), bfloat16)) for i in range(40)]
    assert all(tensor.data_ptr() % 256 == 0 for tensor in taken)
    for value, tensor in enumerate(taken):
        tensor.fill_(value)
    assert all(bool((tensor == value).all()) for value, tensor in enumerate(taken))


def test_equal_sizes_do_not_start_at_equal_page_offsets() -> None:
    memory = arena()
    starts = {memory.take(Tensor("t", (1 << 20,), float32)).data_ptr() % 4096 for _ in range(8)}
    assert len(starts) == 8


def test_released_memory_is_used_again() -> None:
    memory = arena()
    mark = memory.mark()
    for _ in range(10):
        memory.take(Tensor("t", (40 * MIB,), float32))
        memory.release(mark)
    assert memory.allocated_bytes <= 256 * MIB


def test_the_budget_is_kept() -> None:
    memory = arena(64 * MIB)
    memory.take(Tensor("small", (MIB,), float32))
    with pytest.raises(OutOfBudget, match=r"needs .* more bytes; .* of the budget are left"):
        memory.take(Tensor("large", (64 * MIB,), float32))
    assert memory.allocated_bytes <= 64 * MIB


def test_writing_one_tensor_does_not_invalidate_the_graph_of_another() -> None:
    memory = arena()
    x = memory.take(Tensor("x", (8,), float32)).fill_(2.0)
    other = memory.take(Tensor("other", (8,), float32))
    leaf = x.detach().requires_grad_()
    y = (leaf * leaf).sum()
    other.fill_(1.0)
    (gradient,) = torch.autograd.grad(y, leaf)
    assert gradient.tolist() == [4.0] * 8
