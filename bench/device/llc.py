"""The last-level cache of the CPU cores in use, from sysfs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .probe import Probe

DEFAULT_CPU_LLC = 32 << 20
"""Bytes assumed where sysfs lists no cache (virtual machines, some Arm boards)."""
GUEST_LLC_PER_CORE = 96 << 20
"""In a virtual machine sysfs names the host's whole cache, which other guests share: a core counts
for at most this much of it. On a guest of 2 cores, told 480 MiB, reads ran at DRAM speed from about
256 MiB on."""
DEFAULT_GPU_LLC = 128 << 20
"""Bytes assumed where neither driver nor sheet knows a GPU's L2: no known L2 is larger."""

_SIZE = re.compile(r"(\d{1,9})\s*([KMG]?)")
_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int | None:
    """Bytes of sysfs's "48K"; None for anything else, zero included."""
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) * _UNIT[match[2]] if match else 0
    return size or None


def cpu_llc(probe: Probe, cpus: Sequence[int]) -> int | None:
    """Bytes of the highest data or unified cache level of `cpus`, over its distinct instances.

    Two sockets, or two clusters, with an L3 each count both. None where sysfs does not say.
    """
    instances: dict[tuple[int, str], int] = {}
    for cpu in cpus:
        for folder in probe.paths(f"/sys/devices/system/cpu/cpu{cpu}/cache/index*"):
            kind = (probe.file(f"{folder}/type") or "").strip()
            level = (probe.file(f"{folder}/level") or "").strip()
            size = parse_size(probe.file(f"{folder}/size") or "")
            if kind not in ("Data", "Unified") or not level.isdecimal() or size is None:
                continue
            shared = (probe.file(f"{folder}/shared_cpu_list") or "").strip() or str(cpu)
            instances[int(level), shared] = size
    if not instances:
        probe.missing["llc"] = (
            f"sysfs lists no cache; {DEFAULT_CPU_LLC >> 20} MiB assumed for shapes and eviction"
        )
        return None
    highest = max(level for level, _ in instances)
    return sum(size for (level, _), size in instances.items() if level == highest)
