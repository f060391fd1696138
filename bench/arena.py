"""Memory that is allocated and touched once, and carved into tensors.

Allocating inside a measurement costs page faults on a CPU and driver calls on a GPU, and memory
that comes from somewhere else each time makes processes differ. The arena keeps what it has:
on the CPU it is huge-page memory, touched before it is handed out.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..kernels.operation import Tensor
from ..kernels.target import MIB

_ALIGNMENT = 256
# Operands of equal power-of-two size would start at equal addresses modulo 4 KiB, and a load would
# falsely depend on a store to another array; each one is shifted by this much more.
_STAGGER = 5 * _ALIGNMENT
_SLAB = 256 * MIB
_HUGE_PAGE = 2 * MIB


class OutOfBudget(MemoryError):
    """The memory budget of the run does not hold this case; the message has both figures."""


@dataclass
class _Slab:
    memory: torch.Tensor  # uint8
    used: int = 0

    def take(self, nbytes: int, shift: int) -> torch.Tensor | None:
        start = -(-self.used // _ALIGNMENT) * _ALIGNMENT + shift
        if start + nbytes > self.memory.numel():
            return None
        self.used = start + nbytes
        return self.memory[start : start + nbytes]


class Arena:
    """Slabs of memory on one device, never more than `budget_bytes` in all."""

    def __init__(self, device: torch.device, budget_bytes: int) -> None:
        self.device = device
        self.budget_bytes = budget_bytes
        self._slabs: list[_Slab] = []
        self._taken = 0

    @property
    def allocated_bytes(self) -> int:
        return sum(slab.memory.numel() for slab in self._slabs)

    def mark(self) -> list[int]:
        """A state to `release` to."""
        return [slab.used for slab in self._slabs]

    def release(self, mark: list[int]) -> None:
        """Take back everything handed out since `mark`; the memory stays allocated."""
        for index, slab in enumerate(self._slabs):
            slab.used = mark[index] if index < len(mark) else 0

    def take(self, tensor: Tensor) -> torch.Tensor:
        """An uninitialised, 256-byte aligned torch tensor. Raises OutOfBudget."""
        raw = self._bytes(tensor.nbytes)
        # `.data`: slices of one storage share a version counter, and autograd would take a write to
        # another tensor of the arena for a change of this one.
        return raw.view(tensor.dtype.torch_dtype).reshape(tensor.shape).data

    def take_all(self, tensors: Iterable[Tensor]) -> dict[str, torch.Tensor]:
        return {tensor.name: self.take(tensor) for tensor in tensors}

    def _bytes(self, nbytes: int) -> torch.Tensor:
        self._taken += 1
        shift = (self._taken % 16) * _STAGGER
        for slab in self._slabs:
            taken = slab.take(nbytes, shift)
            if taken is not None:
                return taken
        slab = self._grow(nbytes + shift)
        taken = slab.take(nbytes, shift)
        assert taken is not None
        return taken

    def _grow(self, nbytes: int) -> _Slab:
        size = -(-max(nbytes, _SLAB) // _HUGE_PAGE) * _HUGE_PAGE
        if self.allocated_bytes + size > self.budget_bytes:
            size = -(-nbytes // _HUGE_PAGE) * _HUGE_PAGE
        if self.allocated_bytes + size > self.budget_bytes:
            left = self.budget_bytes - self.allocated_bytes
            raise OutOfBudget(f"needs {nbytes:,} more bytes; {left:,} of the budget are left")
        if self.device.type == "cpu":
            slab = _Slab(huge_pages(size))
        else:
            slab = _Slab(torch.empty(size, dtype=torch.uint8, device=self.device))
        self._slabs.append(slab)
        return slab


def huge_pages(nbytes: int) -> torch.Tensor:
    """`nbytes` of touched anonymous memory, in huge pages where the kernel grants them."""
    region = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(region, dtype=torch.uint8)  # keeps the mapping alive
    offset = -whole.data_ptr() % _HUGE_PAGE
    return whole[offset : offset + nbytes].zero_()
