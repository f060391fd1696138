"""Memory that is allocated and touched once, and carved into tensors.

Allocating inside a measurement costs page faults on a CPU and driver calls on a GPU, and memory
that comes from somewhere else each time makes processes differ. The arena keeps what it has:
on the CPU it is huge-page memory, touched before it is handed out.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from ..kernels.operation import Tensor
from ..kernels.target import MIB
from ..results.record import Placement

_HOST = ("pinned", "pageable")
_ALIGNMENT = 256
# Operands of equal power-of-two size would start at equal addresses modulo 4 KiB, and a load would
# falsely depend on a store to another array; each one is shifted by this much more.
_STAGGER = 5 * _ALIGNMENT
_SLAB = 256 * MIB
_HUGE_PAGE = 2 * MIB


class OutOfBudget(MemoryError):
    """The memory budget of the run does not hold this case; the message has both figures."""


class Placing(Protocol):
    """What `PlacedMemory` gives; a stand-in in the tests."""

    def allocate(self, placement: Placement, nbytes: int) -> torch.Tensor: ...


@dataclass
class _Slab:
    memory: torch.Tensor  # uint8
    placement: Placement = "device"
    used: int = 0

    def take(self, nbytes: int, shift: int) -> torch.Tensor | None:
        start = -(-self.used // _ALIGNMENT) * _ALIGNMENT + shift
        if start + nbytes > self.memory.numel():
            return None
        self.used = start + nbytes
        return self.memory[start : start + nbytes]


class Arena:
    """Slabs of memory on one device, never more than `budget_bytes` in all.

    placed: allocates what is not device memory; None: there is none.
    host_bytes: a budget of its own for what lies in the host's memory; None: it is the same memory.
    """

    def __init__(
        self,
        device: torch.device,
        budget_bytes: int,
        placed: Placing | None = None,
        host_bytes: int | None = None,
    ) -> None:
        self.device = device
        self.budget_bytes = budget_bytes
        self._placed, self._host_bytes = placed, host_bytes
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

    def take(self, tensor: Tensor, placement: Placement = "device") -> torch.Tensor:
        """An uninitialised, 256-byte aligned torch tensor. Raises OutOfBudget."""
        raw = self._bytes(tensor.nbytes, placement)
        # `.data`: slices of one storage share a version counter, and autograd would take a write to
        # another tensor of the arena for a change of this one.
        return raw.view(tensor.dtype.torch_dtype).reshape(tensor.shape).data

    def take_all(
        self, tensors: Iterable[Tensor], placement: Placement = "device"
    ) -> dict[str, torch.Tensor]:
        return {tensor.name: self.take(tensor, placement) for tensor in tensors}

    def _bytes(self, nbytes: int, placement: Placement) -> torch.Tensor:
        self._taken += 1
        shift = (self._taken % 16) * _STAGGER
        for slab in self._slabs:
            taken = slab.take(nbytes, shift) if slab.placement == placement else None
            if taken is not None:
                return taken
        slab = self._grow(nbytes + shift, placement)
        taken = slab.take(nbytes, shift)
        assert taken is not None
        return taken

    def _grow(self, nbytes: int, placement: Placement) -> _Slab:
        left = self._left(placement)
        size = -(-max(nbytes, _SLAB) // _HUGE_PAGE) * _HUGE_PAGE
        if size > left:
            size = -(-nbytes // _HUGE_PAGE) * _HUGE_PAGE
        if size > left:
            raise OutOfBudget(f"needs {nbytes:,} more bytes; {left:,} of the budget are left")
        slab = _Slab(self._allocated(size, placement), placement)
        self._slabs.append(slab)
        return slab

    def _left(self, placement: Placement) -> int:
        """Bytes of the budget that this placement is in."""
        if self._host_bytes is None:
            return self.budget_bytes - self.allocated_bytes
        host = placement in _HOST
        taken = sum(s.memory.numel() for s in self._slabs if (s.placement in _HOST) == host)
        return (self._host_bytes if host else self.budget_bytes) - taken

    def _allocated(self, nbytes: int, placement: Placement) -> torch.Tensor:
        if placement != "device":
            assert self._placed is not None, placement
            return self._placed.allocate(placement, nbytes)
        if self.device.type == "cpu":
            return huge_pages(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)


def huge_pages(nbytes: int) -> torch.Tensor:
    """`nbytes` of touched anonymous memory, in huge pages where the kernel grants them."""
    region = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(region, dtype=torch.uint8)  # keeps the mapping alive
    offset = -whole.data_ptr() % _HUGE_PAGE
    return whole[offset : offset + nbytes].zero_()
