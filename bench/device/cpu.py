"""The host: its processor by name, the cores a run may use, and what surrounds them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .probe import Probe

# (implementer, part) as /proc/cpuinfo prints them: Linux arch/arm64/include/asm/cputype.h.
_ARM_CORES = {
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd42"): "Cortex-A78AE",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd83"): "Neoverse-V3AE",
    ("0x41", "0xd84"): "Neoverse-V3",
    ("0x41", "0xd85"): "Cortex-X925",
    ("0x41", "0xd87"): "Cortex-A725",
    ("0x4e", "0x004"): "Carmel",
    ("0xc0", "0xac3"): "Ampere-1",
}

_CONTAINER_MARKS = ("docker", "kubepods", "containerd", "libpod", "lxc")


@dataclass(frozen=True)
class Host:
    """What a run happens on. Texts are as the system gives them; None is unknown."""

    processor: str
    architecture: str
    cpus: tuple[int, ...]  # numbers of the CPUs this process may use
    cores: int  # how many threads can really run: affinity within the control group's quota
    cores_reason: str
    kernel: str | None
    board: str | None
    governor: str | None
    wsl: bool
    container: str | None
    virtual: bool
    transparent_huge_pages: str | None

    def described(self) -> dict[str, str]:
        """For the record: what is known, by name."""
        fields = {
            "cpu": self.processor,
            "architecture": self.architecture,
            "cores_usable": str(self.cores),
            "cores_reason": self.cores_reason,
            "kernel": self.kernel,
            "board": self.board,
            "governor": self.governor,
            "wsl": "yes" if self.wsl else "no",
            "container": self.container or "no",
            "virtual_machine": "yes" if self.virtual else "no",
            "transparent_huge_pages": self.transparent_huge_pages,
        }
        return {name: value for name, value in fields.items() if value is not None}


def read_host(probe: Probe) -> Host:
    """The host; reasons for what it does not say go to `probe.missing`."""
    architecture = probe.text("host.architecture", probe.machine.architecture) or "unknown"
    cpuinfo = probe.file("/proc/cpuinfo") or ""
    board = _board(probe)
    cpus, cores, reason = _cores(probe)
    release = probe.text("host.kernel", lambda: probe.machine.read("/proc/sys/kernel/osrelease"))
    governor = read_governor(probe, cpus)
    if governor is None:
        probe.missing["host.governor"] = "this kernel has no cpufreq policy for these CPUs"
    return Host(
        processor=processor_name(cpuinfo) or board or f"unknown {architecture} processor",
        architecture=architecture,
        cpus=cpus,
        cores=cores,
        cores_reason=reason,
        kernel=release,
        board=board,
        governor=governor,
        wsl="microsoft" in (release or "").lower(),
        container=_container(probe),
        virtual=" hypervisor" in cpuinfo,
        transparent_huge_pages=_huge_pages(probe),
    )


def processor_name(cpuinfo: str) -> str | None:
    """The processor from /proc/cpuinfo: "model name", else the Arm cores by implementer and part.

    A GB10 gives "10x Cortex-X925 + 10x Cortex-A725"; an unlisted core keeps its two numbers.
    """
    cores: dict[str, int] = {}
    implementer = ""
    for line in cpuinfo.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "model name" and value:
            return " ".join(value.split())
        if key == "CPU implementer":
            implementer = value.lower()
        if key == "CPU part":
            part = value.lower()
            core = _ARM_CORES.get((implementer, part), f"Arm {implementer} part {part}")
            cores[core] = cores.get(core, 0) + 1
    return " + ".join(f"{count}x {core}" for core, count in cores.items()) or None


def read_governor(probe: Probe, cpus: Sequence[int]) -> str | None:
    """The frequency governor of `cpus`, several joined by "+"; None where there is none."""
    found = set()
    for cpu in cpus:
        path = f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"
        found.add((probe.file(path) or "").strip())
    return "+".join(sorted(found - {""})) or None


def cgroup_cores(probe: Probe) -> float | None:
    """The CPU quota of the tightest control group around this process, in cores; None: no quota."""
    quotas = []
    for line in (probe.file("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            tail = "/".join(("", *parts[:depth]))
            if controllers == "":
                words = (probe.file(f"/sys/fs/cgroup{tail}/cpu.max") or "").split()
            elif "cpu" in controllers.split(","):
                folder = f"/sys/fs/cgroup/cpu{tail}"
                words = (probe.file(f"{folder}/cpu.cfs_quota_us") or "").split()
                words += (probe.file(f"{folder}/cpu.cfs_period_us") or "").split()
            else:
                continue
            if len(words) == 2 and all(word.isdecimal() and int(word) > 0 for word in words):
                quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _cores(probe: Probe) -> tuple[tuple[int, ...], int, str]:
    try:
        cpus = tuple(probe.machine.affinity())
    except Exception:
        cpus = ()
    if not cpus:
        probe.missing["host.affinity"] = "the system does not say which CPUs may be used"
        return (0,), 1, "unknown affinity: one core assumed"
    quota = cgroup_cores(probe)
    if quota is not None and quota < len(cpus):
        cores = max(1, int(quota))
        return cpus, cores, f"control group quota of {quota:g} of {len(cpus)} CPUs"
    return cpus, len(cpus), f"affinity of {len(cpus)} CPUs"


def _board(probe: Probe) -> str | None:
    for path in ("/proc/device-tree/model", "/sys/class/dmi/id/product_name"):
        text = " ".join((probe.file(path) or "").replace("\0", " ").split())
        if text:
            return text
    return None


def _container(probe: Probe) -> str | None:
    for path, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if probe.file(path) is not None:
            return kind
    named = probe.machine.environ("container")
    if named:
        return named
    groups = (probe.file("/proc/1/cgroup") or "") + (probe.file("/proc/self/cgroup") or "")
    return next((mark for mark in _CONTAINER_MARKS if mark in groups), None)


def _huge_pages(probe: Probe) -> str | None:
    text = probe.file("/sys/kernel/mm/transparent_hugepage/enabled") or ""
    chosen = re.search(r"\[(\w+)\]", text)
    if chosen is None:
        probe.missing["host.transparent_huge_pages"] = "this kernel does not say"
        return None
    return chosen[1]
