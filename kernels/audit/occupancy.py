"""How many blocks of a kernel one multiprocessor holds, and whether it holds any."""

from __future__ import annotations

from ..backends.cuda import MAX_BLOCKS, Geometry
from ..target import KIB, Target
from .machine import Machine

_WARP = 32
_SCHEDULERS = 4
_REGISTERS_AT_ONCE = 256
"""Registers are given to a warp by so many."""
_MOST_THREADS = 1024


def registers_of_warp(code: Machine) -> int:
    """Registers that one warp takes from the file."""
    return -(-code.registers * _WARP // _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE


def does_not_fit(code: Machine, geometry: Geometry, target: Target) -> str | None:
    """The limit of the device that this launch exceeds, or None."""
    if not (1 <= geometry.threads <= _MOST_THREADS and 1 <= geometry.blocks <= MAX_BLOCKS):
        return f"{geometry}"
    if geometry.cluster > target.blocks_per_cluster:
        return f"clusters of {geometry.cluster} on {target.arch}"
    if geometry.blocks % geometry.cluster:
        return f"{geometry.blocks} blocks in clusters of {geometry.cluster}"
    shared = code.shared + geometry.shared_bytes
    if shared > target.shared_per_block:
        return f"{shared} bytes of shared memory of {target.shared_per_block}"
    registers = -(-geometry.threads // _WARP) * registers_of_warp(code)
    if registers > target.registers_per_multiprocessor:
        return f"{registers} registers of {target.registers_per_multiprocessor}"
    return None


def resident_blocks(code: Machine, geometry: Geometry, target: Target) -> int:
    """Blocks that one multiprocessor runs at once: registers, shared memory, threads, blocks.

    Warps are dealt to four schedulers, each with a quarter of the registers. A block takes 1 KiB of
    shared memory for itself from sm_80 on.
    """
    warps = -(-geometry.threads // _WARP)
    of_scheduler = target.registers_per_multiprocessor // _SCHEDULERS // registers_of_warp(code)
    own = KIB if target.sm >= 80 else 0
    shared = code.shared + geometry.shared_bytes + own
    return min(
        of_scheduler * _SCHEDULERS // warps,
        target.threads_per_multiprocessor // (warps * _WARP),
        target.shared_per_multiprocessor // shared if shared else target.blocks_per_multiprocessor,
        target.blocks_per_multiprocessor,
    )


def occupancy(code: Machine, geometry: Geometry, target: Target) -> float:
    """Resident threads over the most that there can be."""
    threads = resident_blocks(code, geometry, target) * -(-geometry.threads // _WARP) * _WARP
    return threads / target.threads_per_multiprocessor
