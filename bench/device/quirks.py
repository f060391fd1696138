"""What is special about a device, one line each, for the run's record."""

from __future__ import annotations

from .cpu import Host
from .identity import Gpu

_EXCLUSIVE, _PROHIBITED = 3, 2  # CU_COMPUTEMODE_EXCLUSIVE_PROCESS, CU_COMPUTEMODE_PROHIBITED


def gpu_quirks(gpu: Gpu, host: Host) -> list[str]:
    """The lines for a CUDA device; every one follows from an answer, none from a guess."""
    device, row = gpu.device, gpu.row
    lines = []
    if device.integrated:
        lines.append(
            "memory is shared with the CPU: sized from MemAvailable; "
            "other programs' traffic counts against it"
        )
    if device.name == "NVIDIA GB10":
        lines.append(
            "GB10 can sit in a slow state that looks normal: if the SM clock stays low, "
            "unplug it for a minute"
        )
    if device.name in ("Orin", "Xavier"):
        lines.append(
            "the name is the SoC, not the module, and bandwidth depends on the power mode: "
            "see nvpmodel -q"
        )
    if row is not None and row.unified == "coherent":
        lines.append("CPU and GPU share an address space: page cache can occupy GPU memory")
    if device.mig is not None:
        lines.append(f"MIG slice {device.mig}: a share of the card, not comparable with the whole")
    if gpu.virtual:
        lines.append("virtual GPU: memory bandwidth is shared with other guests")
    if device.ecc and row is not None and row.memory_type.startswith("GDDR"):
        lines.append("ECC is on: in GDDR memory it can take capacity and bandwidth")
    if gpu.compute_mode == _EXCLUSIVE:
        lines.append("compute mode is exclusive: one process at a time can use this GPU")
    if gpu.compute_mode == _PROHIBITED:
        lines.append("compute mode is prohibited: nothing can run here until nvidia-smi -c 0")
    if host.wsl:
        lines.append(
            "WSL: launches are batched by Windows' driver and telemetry is partly missing; "
            "compare with WSL runs only"
        )
    return lines


def cpu_quirks(host: Host) -> list[str]:
    """The lines for the CPU."""
    lines = []
    if host.virtual:
        lines.append("virtual machine: caches and memory may be shared with other guests")
    if host.wsl:
        lines.append("WSL: a virtual machine under Windows; compare with WSL runs only")
    if host.cores < len(host.cpus):
        lines.append(f"cores are limited: {host.cores_reason}")
    if host.governor not in (None, "performance"):
        lines.append(f"frequency governor is {host.governor}, not performance")
    return lines
