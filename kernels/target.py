"""What a kernel may know of the hardware it is prepared for.

A `Target` comes from a real device (`bench.device`) or, where none is present, from the table of
architectures below, so that a machine without a GPU prepares exactly what a GPU would run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class Target:
    """Limits of one device. Sizes in bytes; counts per multiprocessor where named so."""

    kind: Literal["cuda", "cpu"]
    arch: str  # "sm_121"; on the CPU the machine, "x86_64"
    multiprocessors: int  # CPU: cores used
    llc_bytes: int
    threads_per_multiprocessor: int = 2048
    shared_per_block: int = 48 * KIB  # after opting in
    shared_per_multiprocessor: int = 64 * KIB
    registers_per_multiprocessor: int = 65536
    ordinal: int = 0

    @property
    def sm(self) -> int:
        """121 for sm_121; 0 on the CPU."""
        return int(self.arch.removeprefix("sm_")) if self.kind == "cuda" else 0


# (threads per multiprocessor, shared per block with opt-in KiB, shared per multiprocessor KiB,
#  multiprocessors and last-level cache MiB of a typical part): CUDA C++ Programming Guide,
#  "Technical Specifications per Compute Capability"; parts from bench/device/gpus.csv.
_ARCHITECTURES: dict[int, tuple[int, int, int, int, int]] = {
    75: (1024, 64, 64, 40, 4),  # T4
    80: (2048, 163, 164, 108, 40),  # A100
    86: (1536, 99, 100, 84, 6),  # A10, RTX 3090
    87: (1536, 163, 164, 16, 4),  # Orin
    89: (1536, 99, 100, 128, 72),  # RTX 4090
    90: (2048, 227, 228, 132, 50),  # H100
    100: (2048, 227, 228, 148, 126),  # B200
    110: (1536, 227, 228, 20, 32),  # Thor
    120: (1536, 99, 100, 170, 96),  # RTX 5090
    121: (1536, 99, 100, 48, 40),  # GB10: 24 MiB L2 and 16 MiB beside memory
}

ARCHITECTURES: tuple[str, ...] = tuple(f"sm_{sm}" for sm in _ARCHITECTURES)


def shared_per_block(sm: int) -> int:
    """Bytes of shared memory one block may opt in to; 48 KiB where the architecture is unknown."""
    return _ARCHITECTURES[sm][1] * KIB if sm in _ARCHITECTURES else 48 * KIB


def reference_target(arch: str) -> Target:
    """A typical part of this architecture, for compiling and auditing without one.

    Raises ValueError for an architecture not in `ARCHITECTURES`.
    """
    sm = int(arch.removeprefix("sm_"))
    if sm not in _ARCHITECTURES:
        raise ValueError(f"unknown architecture {arch!r}; known: {', '.join(ARCHITECTURES)}")
    threads, block_kib, shared_kib, multiprocessors, llc_mib = _ARCHITECTURES[sm]
    return Target(
        kind="cuda",
        arch=arch,
        multiprocessors=multiprocessors,
        llc_bytes=llc_mib * MIB,
        threads_per_multiprocessor=threads,
        shared_per_block=block_kib * KIB,
        shared_per_multiprocessor=shared_kib * KIB,
    )
