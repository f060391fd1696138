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
    blocks_per_multiprocessor: int = 16
    blocks_per_cluster: int = 1  # at most; 1 where there are no clusters
    ordinal: int = 0

    @property
    def sm(self) -> int:
        """121 for sm_121; 0 on the CPU."""
        return int(self.arch.removeprefix("sm_")) if self.kind == "cuda" else 0


# (threads and blocks per multiprocessor, shared per block with opt-in KiB, shared per
#  multiprocessor KiB, multiprocessors and last-level cache MiB of a typical part): CUDA C++
#  Programming Guide, "Technical Specifications per Compute Capability"; parts from
#  bench/device/gpus.csv.
_ARCHITECTURES: dict[int, tuple[int, int, int, int, int, int]] = {
    75: (1024, 16, 64, 64, 40, 4),  # T4
    80: (2048, 32, 163, 164, 108, 40),  # A100
    86: (1536, 16, 99, 100, 84, 6),  # A10, RTX 3090
    87: (1536, 16, 163, 164, 16, 4),  # Orin
    89: (1536, 24, 99, 100, 128, 72),  # RTX 4090
    90: (2048, 32, 227, 228, 132, 50),  # H100
    100: (2048, 32, 227, 228, 148, 126),  # B200
    110: (1536, 24, 227, 228, 20, 32),  # Thor
    120: (1536, 24, 99, 100, 170, 96),  # RTX 5090
    121: (1536, 24, 99, 100, 48, 40),  # GB10: 24 MiB L2 and 16 MiB beside memory
}

ARCHITECTURES: tuple[str, ...] = tuple(f"sm_{sm}" for sm in _ARCHITECTURES)


def shared_per_block(sm: int) -> int:
    """Bytes of shared memory one block may opt in to; 48 KiB where the architecture is unknown."""
    return _ARCHITECTURES[sm][2] * KIB if sm in _ARCHITECTURES else 48 * KIB


def blocks_per_cluster(sm: int) -> int:
    """Blocks of the largest portable cluster: 8 from sm_90 on, 1 where there are no clusters."""
    return 8 if sm >= 90 else 1


def reference_target(arch: str) -> Target:
    """A typical part of this architecture, for compiling and auditing without one.

    Raises ValueError for an architecture not in `ARCHITECTURES`.
    """
    sm = int(arch.removeprefix("sm_"))
    if sm not in _ARCHITECTURES:
        raise ValueError(f"unknown architecture {arch!r}; known: {', '.join(ARCHITECTURES)}")
    threads, blocks, block_kib, shared_kib, multiprocessors, llc_mib = _ARCHITECTURES[sm]
    return Target(
        kind="cuda",
        arch=arch,
        multiprocessors=multiprocessors,
        llc_bytes=llc_mib * MIB,
        threads_per_multiprocessor=threads,
        shared_per_block=block_kib * KIB,
        shared_per_multiprocessor=shared_kib * KIB,
        blocks_per_multiprocessor=blocks,
        blocks_per_cluster=blocks_per_cluster(sm),
    )


@dataclass(frozen=True)
class Part:
    """One product. bandwidth: of its memory, bytes/s, as its sheet says.

    clock: boost clock of its multiprocessors, Hz; None where no source is known.
    """

    name: str
    arch: str
    multiprocessors: int
    clock: float | None
    bandwidth: float


# bench/device/gpus.csv by marketing name. The clock is what its single-precision rate implies: 2
# operations x 128 lanes of a multiprocessor (64 on sm_75 and sm_80) x the clock.
_PARTS: tuple[tuple[str, str, int, float | None, float], ...] = (
    ("T4", "sm_75", 40, 1.590, 320),
    ("A100 SXM4 80GB", "sm_80", 108, 1.410, 2039),
    ("RTX 3090", "sm_86", 82, 1.695, 936),
    ("Jetson AGX Orin 64GB", "sm_87", 16, 1.300, 204.8),
    ("RTX 4090", "sm_89", 128, 2.520, 1008),
    ("H100 SXM5 80GB", "sm_90", 132, 1.980, 3352),
    ("H200 SXM 141GB", "sm_90", 132, 1.980, 4800),
    ("B200 SXM 180GB (HGX)", "sm_100", 148, 1.980, 7700),
    ("Jetson AGX Thor T5000", "sm_110", 20, None, 273),
    ("RTX 5090", "sm_120", 170, 2.408, 1792),
    ("DGX Spark GB10", "sm_121", 48, 2.523, 273),
)

PARTS = tuple(
    Part(name, arch, multiprocessors, clock and clock * 1e9, bandwidth * 1e9)
    for name, arch, multiprocessors, clock, bandwidth in _PARTS
)
"""Products to judge machine code for, several of one architecture where they differ."""
