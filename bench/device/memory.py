"""How many bytes a run may use.

On integrated devices CUDA's free memory is the kernel's MemFree (page cache counted as used) and
taking too much freezes the host instead of failing, so only half of MemAvailable is used there,
whatever CUDA says. A discrete GPU's own free memory counts. On the CPU it is a share of
MemAvailable, and of what the control group leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

from .probe import Probe

HOST_SHARE = 0.5
"""Of MemAvailable, on integrated devices and on the CPU."""
DEVICE_SHARE = 0.9
"""Of a discrete GPU's free memory: a context and an allocator's rounding need the rest."""
WITHOUT_ANSWER = 1 << 30
"""Bytes to use where the host does not say what is available."""

_UNLIMITED = 1 << 60  # version 1 control groups spell "no limit" as a number near 2^63


@dataclass(frozen=True)
class HostMemory:
    """Bytes; None where /proc/meminfo does not say."""

    total: int | None
    available: int | None  # MemAvailable, within what the control group leaves


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo as bytes by field; lines that are not `Name: N kB` are left out."""
    fields: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[0].isdecimal() and words[1] == "kB":
            fields[name.strip()] = int(words[0]) * 1024
    return fields


def host_memory(probe: Probe) -> HostMemory:
    """Total and available memory of the host; the reasons for unknowns go to `probe.missing`."""
    fields = parse_meminfo(probe.file("/proc/meminfo") or "")
    for name in ("MemTotal", "MemAvailable"):
        if name not in fields:
            probe.missing[f"host.{name}"] = "/proc/meminfo does not say"
    available = fields.get("MemAvailable")
    left = cgroup_left(probe)
    if available is not None and left is not None:
        available = min(available, left)
    return HostMemory(total=fields.get("MemTotal"), available=available)


def cgroup_left(probe: Probe) -> int | None:
    """Bytes that the tightest memory control group around this process leaves; None: no limit.

    Page cache that the kernel would give back (inactive_file) counts as left.
    """
    lefts = []
    for line in (probe.file("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            root, names = "/sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = "/sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            left = _group_left(probe, "/".join((root, *parts[:depth])), names)
            if left is not None:
                lefts.append(left)
    return min(lefts, default=None)


def _group_left(probe: Probe, folder: str, names: tuple[str, str, str]) -> int | None:
    limit = (probe.file(f"{folder}/{names[0]}") or "").strip()
    usage = (probe.file(f"{folder}/{names[1]}") or "").strip()
    if not limit.isdecimal() or not usage.isdecimal() or int(limit) >= _UNLIMITED:
        return None
    reclaimable = 0
    for line in (probe.file(f"{folder}/memory.stat") or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == names[2] and words[1].isdecimal():
            reclaimable = int(words[1])
    return max(0, int(limit) - max(0, int(usage) - reclaimable))


def host_budget(memory: HostMemory) -> int:
    """Bytes for a run in host memory: the CPU, and every integrated device."""
    if memory.available is None:
        return WITHOUT_ANSWER
    return int(memory.available * HOST_SHARE)


def device_budget(free: int) -> int:
    """Bytes for a run on a discrete GPU with `free` bytes left. Zero is zero here: it is full."""
    return int(free * DEVICE_SHARE)
