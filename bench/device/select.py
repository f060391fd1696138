"""The front of this package: from a device's name on the command line to all a run needs to know.

Importing it loads neither CUDA nor NVML nor torch; selecting a GPU loads the first two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...kernels.target import ARCHITECTURES, Target, blocks_per_cluster, reference_target
from ...results.record import Peak
from .cpu import read_host
from .identity import Gpu, cpu_device, read_gpu
from .live import Live
from .memory import HostMemory, device_budget, host_budget, host_memory
from .peaks import HOW_TO_GIVE, decide, user_peak
from .placements import unplaceable
from .probe import Machine, Probe, one_line
from .quirks import cpu_quirks, gpu_quirks
from .selected import Selected
from .sheet import read_sheet
from .state import compute_processes, snapshot
from .visible import visible

__all__ = [
    "NoSuchDevice",
    "Selected",
    "UnknownDevice",
    "compute_processes",
    "select",
    "snapshot",
]

VALID_NAMES = "cpu, cuda, cuda:0, cuda:1, …"


class UnknownDevice(ValueError):
    """A text that names no kind of device; the message lists the valid forms."""

    exit_code = 2


class NoSuchDevice(RuntimeError):
    """A GPU that was asked for and cannot be used; the message says why."""

    exit_code = 4


def select(
    name: str | None,
    peak: float | None = None,
    peak_source: str | None = None,
    machine: Machine | None = None,
) -> Selected:
    """Choose a device: None (a GPU if one can be used, else the CPU), "cpu", "cuda" or "cuda:N".

    `peak` in GB/s (1e9 bytes) is believed before any other, `peak_source` says where it is from.
    Raises UnknownDevice, peaks.BadPeak (both usage errors) and NoSuchDevice.
    """
    user = user_peak(peak, peak_source)
    machine = machine or Live()
    if name is not None and name != "cpu" and not re.fullmatch(r"cuda(:[0-9]{1,4})?", name):
        raise UnknownDevice(f"unknown device {name!r}; valid: {VALID_NAMES}")
    if name == "cpu":
        return _select_cpu(machine, user, None)
    ordinal = int(name.partition(":")[2] or 0) if name else 0
    try:
        _check_cuda(machine, ordinal)
        return _select_gpu(machine, ordinal, user)
    except NoSuchDevice as error:
        if name is not None:
            raise
        return _select_cpu(machine, user, str(error))


def _check_cuda(machine: Machine, ordinal: int) -> None:
    """Raises NoSuchDevice with the reason unless CUDA device `ordinal` is there."""
    value = machine.environ("CUDA_VISIBLE_DEVICES")
    if value is not None and not value.strip():
        raise NoSuchDevice("no GPU is visible: CUDA_VISIBLE_DEVICES is set and empty")
    try:
        count = machine.cuda("count")
    except ImportError as error:
        raise NoSuchDevice(_why_no_python(machine, error)) from None
    except Exception as error:
        raise NoSuchDevice(_why_no_cuda(machine, error)) from None
    if not isinstance(count, int) or count < 1:
        hidden = "" if value is None else f" with CUDA_VISIBLE_DEVICES={value!r}"
        raise NoSuchDevice(f"CUDA sees no GPU{hidden}")
    if ordinal >= count:
        there = ", ".join(f"cuda:{index}" for index in range(count))
        hidden = "" if value is None else f" with CUDA_VISIBLE_DEVICES={value!r}"
        raise NoSuchDevice(f"no cuda:{ordinal}{hidden}; there are: {there}")


_NODES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/dxg")
"""What drivers leave: of discrete GPUs, of Jetsons, and of WSL."""


def _why_no_python(machine: Machine, error: ImportError) -> str:
    """Nobody without a GPU is to install packages for one."""
    if not any(machine.glob(node) for node in _NODES):
        return f"no GPU: none of {', '.join(_NODES)} is there"
    return (
        f"CUDA for Python cannot be loaded ({one_line(error)}): install the cuda13 or cuda12 extra"
    )


def _why_no_cuda(machine: Machine, error: Exception) -> str:
    text = one_line(error)
    if "CUDA_ERROR_NO_DEVICE" in text:
        problem = _visibility_problem(machine, 0)
        value = machine.environ("CUDA_VISIBLE_DEVICES")
        if problem is None and value is not None:
            problem = f"CUDA_VISIBLE_DEVICES={value!r}"
        return f"CUDA sees no GPU: {problem}" if problem else "CUDA sees no GPU"
    if "CUDA_ERROR" in text:
        return f"CUDA cannot start: {text}"
    return f"the NVIDIA driver is missing: libcuda cannot be loaded ({text})"


def _visibility_problem(machine: Machine, count: object) -> str | None:
    """The entry that ends CUDA_VISIBLE_DEVICES early, if that explains the `count` CUDA sees.

    NVML may list less than CUDA sees (MIG slices need a right of their own); then it explains
    nothing.
    """
    value = machine.environ("CUDA_VISIBLE_DEVICES")
    try:
        uuids = machine.nvml("uuids")
    except Exception:
        return None
    listed = visible(value, [str(u) for u in uuids] if isinstance(uuids, Sequence) else [])
    if listed.problem is None or listed.entries is None or len(listed.entries) != count:
        return None
    return f"CUDA_VISIBLE_DEVICES={value!r}: {listed.problem}; the list ends before it"


def _select_gpu(machine: Machine, ordinal: int, user: Peak | None) -> Selected:
    probe = Probe(machine)
    host = read_host(probe)
    memory = host_memory(probe)
    rows = read_sheet()
    gpu = read_gpu(probe, ordinal, memory, rows)
    if gpu.device.capability is None:
        raise NoSuchDevice(
            f"cuda:{ordinal} does not answer: {probe.missing.get('capability', 'no capability')}"
        )
    decision = decide(gpu.known, rows, user)
    if decision.sheet_reason is not None:
        probe.missing["peak.sheet"] = decision.sheet_reason
    warnings = list(decision.warnings)
    problem = _visibility_problem(machine, probe.count("count", lambda: machine.cuda("count")))
    if problem is not None:
        warnings.append(problem)
    budget = _gpu_budget(probe, gpu, memory)
    return Selected(
        device=gpu.device,
        target=_gpu_target(probe, gpu),
        peak=decision.peak,
        peak_reason=decision.reason,
        peak_candidates=list(decision.candidates),
        quirks=gpu_quirks(gpu, host),
        warnings=warnings,
        missing=probe.missing,
        memory_budget_bytes=budget,
        host_budget_bytes=host_budget(memory) if gpu.device.integrated is False else None,
        unplaceable=unplaceable(probe, ordinal),
        host=host.described(),
        nvml=gpu.nvml,
        cpus=host.cpus,
        machine=machine,
    )


def _select_cpu(machine: Machine, user: Peak | None, fallback_reason: str | None) -> Selected:
    probe = Probe(machine)
    host = read_host(probe)
    memory = host_memory(probe)
    device = cpu_device(probe, host, memory)
    reason = f"the bandwidth of this host's memory is not in any sheet here; {HOW_TO_GIVE}"
    return Selected(
        device=device,
        target=Target(
            kind="cpu",
            arch=host.architecture,
            multiprocessors=host.cores,
            llc_bytes=device.llc_bytes,
        ),
        peak=user,
        peak_reason=None if user else reason,
        peak_candidates=[user] if user else [],
        quirks=cpu_quirks(host),
        warnings=[],
        missing=probe.missing,
        memory_budget_bytes=host_budget(memory),
        host=host.described(),
        fallback_reason=fallback_reason,
        cpus=host.cpus,
        machine=machine,
    )


def _gpu_budget(probe: Probe, gpu: Gpu, memory: HostMemory) -> int:
    if gpu.device.integrated:
        return host_budget(memory)
    ordinal, nvml = gpu.ordinal, gpu.nvml
    calls = [lambda: probe.machine.cuda("free_memory", ordinal)]
    if nvml is not None:
        calls.insert(0, lambda: probe.machine.nvml("memory_free", nvml))
    free = probe.count("free_memory", *calls, zero=True)
    if free is None:
        probe.missing["free_memory"] += "; half of the total is taken"
        budget = (gpu.device.memory_bytes or 0) // 2
    else:
        budget = device_budget(free)
    # Whether it is integrated is unknown: neither memory may be exhausted.
    return budget if gpu.device.integrated is False else min(budget, host_budget(memory))


def _blocks_per_cluster(probe: Probe, gpu: Gpu, sm: int) -> int:
    """What the architecture allows, unless the device says that it launches no clusters."""
    launches = probe.flag(
        "CLUSTER_LAUNCH", lambda: probe.machine.cuda("CLUSTER_LAUNCH", gpu.ordinal)
    )
    return 1 if launches is False else blocks_per_cluster(sm)


def _gpu_target(probe: Probe, gpu: Gpu) -> Target:
    """What kernels are prepared for; an unanswered limit is the architecture's."""
    major, _, minor = (gpu.device.capability or "").partition(".")
    arch = f"sm_{major}{minor}"
    usual = (
        reference_target(arch)
        if arch in ARCHITECTURES
        else Target(kind="cuda", arch=arch, multiprocessors=1, llc_bytes=gpu.device.llc_bytes)
    )

    def limit(attribute: str, otherwise: int) -> int:
        value = probe.count(attribute, lambda: probe.machine.cuda(attribute, gpu.ordinal))
        return otherwise if value is None else value

    in_sheet = gpu.row.sm_count if gpu.row else None
    return Target(
        kind="cuda",
        arch=arch,
        multiprocessors=gpu.device.multiprocessors or in_sheet or usual.multiprocessors,
        llc_bytes=gpu.device.llc_bytes,
        threads_per_multiprocessor=limit(
            "MAX_THREADS_PER_MULTIPROCESSOR", usual.threads_per_multiprocessor
        ),
        shared_per_block=limit("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", usual.shared_per_block),
        shared_per_multiprocessor=limit(
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", usual.shared_per_multiprocessor
        ),
        registers_per_multiprocessor=limit(
            "MAX_REGISTERS_PER_MULTIPROCESSOR", usual.registers_per_multiprocessor
        ),
        blocks_per_cluster=_blocks_per_cluster(probe, gpu, int(f"{major}{minor}" or 0)),
        ordinal=gpu.ordinal,
    )
