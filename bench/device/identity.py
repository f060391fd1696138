"""Who is measured: a CUDA device or the CPU as a `Device` of the record, and its results folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...results.record import Device
from .cpu import Host
from .llc import DEFAULT_CPU_LLC, DEFAULT_GPU_LLC, GUEST_LLC_PER_CORE, cpu_llc
from .memory import HostMemory
from .peaks import Known
from .probe import Probe, QueryError, one_line
from .sheet import GIB, MIB, SheetRow, find, named, read_sheet

_PROFILE = re.compile(r"\bMIG (\d+[cg]\.\S+)")
_VGPU_NAME = re.compile(r"^(GRID|NVIDIA GRID) |-\d+[ABCQ]$")
_NVML_VGPU = 2  # NVML_GPU_VIRTUALIZATION_MODE_VGPU


@dataclass(frozen=True)
class Gpu:
    """A CUDA device as far as it can be known; `nvml` is the name by which NVML knows it."""

    ordinal: int
    device: Device
    known: Known
    row: SheetRow | None  # by whole name, memory and capability
    nvml: str | None
    virtual: bool
    compute_mode: int | None


def read_gpu(probe: Probe, ordinal: int, host: HostMemory, rows: Sequence[SheetRow]) -> Gpu:
    """Everything about CUDA device `ordinal`; reasons for unknowns go to `probe.missing`."""

    def cuda(query: str) -> object:
        return probe.machine.cuda(query, ordinal)

    name = probe.text("name", lambda: cuda("name"))
    major = probe.count("capability", lambda: cuda("COMPUTE_CAPABILITY_MAJOR"))
    minor = probe.count("capability", lambda: cuda("COMPUTE_CAPABILITY_MINOR"), zero=True)
    capability = None if major is None or minor is None else f"{major}.{minor}"
    pci = probe.text("pci_bus_id", lambda: cuda("pci_bus_id"))
    uuid, nvml = _identify(probe, cuda, pci, is_mig=" MIG " in (name or ""))
    mig = _mig_profile(name, uuid)

    def ask_nvml(query: str) -> object:
        if nvml is None:
            raise QueryError(f"NVML does not know this device: {probe.missing['nvml']}")
        return probe.machine.nvml(query, nvml)

    integrated = probe.flag("integrated", lambda: cuda("INTEGRATED"))
    if any(row.unified == "yes" for row in named(rows, name)):
        integrated = True
    memory = probe.count(
        "memory_bytes", lambda: cuda("total_memory"), lambda: ask_nvml("memory_total")
    )
    if memory is None and integrated:
        memory = host.total
    row = find(rows, name, memory, capability).row
    clock, bus = _memory_interface(probe, cuda, ask_nvml, whole_card=mig is None)
    l2 = probe.count("l2_bytes", lambda: cuda("L2_CACHE_SIZE"), lambda: _sheet_l2(row))
    beside = int((row.memory_side_cache_mib or 0) * MIB) if row else 0
    if l2 is None:
        probe.missing["l2_bytes"] += f"; {DEFAULT_GPU_LLC // MIB} MiB assumed"
    device = Device(
        kind="cuda",
        name=name or "unknown CUDA device",
        uuid=uuid,
        pci_bus_id=pci,
        capability=capability,
        memory_bytes=memory,
        integrated=integrated,
        mig=mig,
        ecc=probe.flag("ecc", lambda: ask_nvml("ecc"), lambda: cuda("ECC_ENABLED")),
        power_limit_watts=_watts(
            probe.count("power_limit_watts", lambda: ask_nvml("power_limit_mw"))
        ),
        multiprocessors=probe.count("multiprocessors", lambda: cuda("MULTIPROCESSOR_COUNT")),
        sm_clock_mhz=_megahertz(probe.count("sm_clock", lambda: cuda("CLOCK_RATE"))),
        l2_bytes=l2,
        memory_side_cache_bytes=beside,
        llc_bytes=(l2 or DEFAULT_GPU_LLC) + beside,
        driver=_driver(probe),
        cuda_driver=_cuda_version(probe.count("cuda_driver", lambda: cuda("driver_version"))),
    )
    mode = probe.count("virtualization", lambda: ask_nvml("virtualization_mode"), zero=True)
    return Gpu(
        ordinal=ordinal,
        device=device,
        known=Known(
            name, memory, capability, _shares_memory(integrated, rows, name), mig, clock, bus
        ),
        row=row,
        nvml=nvml,
        virtual=mode == _NVML_VGPU or bool(_VGPU_NAME.search(name or "")),
        compute_mode=probe.count("compute_mode", lambda: cuda("COMPUTE_MODE"), zero=True),
    )


def _shares_memory(
    integrated: bool | None, rows: Sequence[SheetRow], name: str | None
) -> bool | None:
    """The device's word, else that of the sheet; None where the sheet does not know the name."""
    if integrated is not None:
        return integrated
    whole = named(rows, (name or "").split(" MIG ")[0])
    return any(row.unified == "yes" for row in whole) if whole else None


def _megahertz(kilohertz: int | None) -> int | None:
    return (kilohertz or 0) // 1000 or None


def cpu_device(probe: Probe, host: Host, memory: HostMemory) -> Device:
    """The host's processor and memory as a device."""
    named_by_sysfs = cpu_llc(probe, host.cpus)
    llc = named_by_sysfs or DEFAULT_CPU_LLC
    if host.virtual and llc > GUEST_LLC_PER_CORE * host.cores:
        llc = GUEST_LLC_PER_CORE * host.cores
        probe.missing["llc"] = (
            f"sysfs names {(named_by_sysfs or 0) // MIB} MiB, the host's cache, shared with other "
            f"guests; {llc // MIB} MiB taken for shapes and eviction"
        )
    return Device(
        kind="cpu",
        name=host.processor,
        architecture=host.architecture,
        memory_bytes=memory.total,
        multiprocessors=host.cores,
        l2_bytes=named_by_sysfs,
        llc_bytes=llc,
    )


def device_folder(device: Device) -> str:
    """The device's folder under `results/`: letters, digits and "._+-", at most 120 characters.

    Memory is the sheet's nominal size where the sheet knows the name, so that a kernel update or
    switching ECC does not move a device; the CPU's folder carries its cores.
    """
    name = re.sub(r"\((R|TM|C)\)|\bCPU\b|@.*", " ", device.name, flags=re.IGNORECASE)
    parts = [name if device.kind == "cpu" else device.name]
    if device.kind == "cpu":
        parts.append(f"{device.multiprocessors or 0}-cores")
    if device.memory_bytes is not None:
        parts.append(f"{_nominal_gib(device)}GiB")
    if device.mig is not None and device.mig not in device.name:
        parts.append(f"MIG-{device.mig}")
    safe = [re.sub(r"[^A-Za-z0-9._+]+", "-", part).strip("-._") for part in parts]
    safe[0] = safe[0][:80] or f"unknown-{device.kind}"
    return "-".join(part for part in safe if part)[:120]


def _nominal_gib(device: Device) -> str:
    memory = device.memory_bytes or 0
    sizes = {
        gib
        for row in named(read_sheet(), device.name)
        if (gib := row.nearest_memory_gib(memory)) is not None
    }
    return (
        f"{min(sizes, key=lambda gib: abs(gib - memory / GIB)) if sizes else round(memory / GIB):g}"
    )


def _identify(
    probe: Probe, cuda: Callable[[str], object], pci: str | None, is_mig: bool
) -> tuple[str | None, str | None]:
    """(UUID with its prefix, the name by which NVML answers for exactly this device)."""
    raw = (probe.text("uuid", lambda: cuda("uuid")) or "").replace("-", "").lower()
    prefixes = ("MIG-", "GPU-") if is_mig else ("GPU-", "MIG-")
    uuids: list[str] = []
    if re.fullmatch(r"[0-9a-f]{32}", raw) and raw.strip("0"):
        body = "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
        uuids = [prefix + body for prefix in prefixes]
    elif raw:
        probe.missing["uuid"] = f"answered {raw[:40]!r}, not a UUID"
    # The PCI id of a MIG slice is its whole card's, whose answers are not the slice's.
    names = [*uuids, *([pci] if pci and not is_mig else [])]
    reasons: list[str] = []
    for name in names:
        try:
            answer = probe.machine.nvml("uuid", name)
        except Exception as error:
            reasons.append(one_line(error))
            continue
        text = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
        known = text if text.startswith(("GPU-", "MIG-")) else None
        return known or (uuids[0] if uuids else None), name
    probe.missing["nvml"] = (
        "; ".join(dict.fromkeys(reasons)) or "CUDA gives neither UUID nor PCI id"
    )
    return (uuids[0] if uuids else None), None


def _mig_profile(name: str | None, uuid: str | None) -> str | None:
    profile = _PROFILE.search(name or "")
    if profile:
        return profile[1]
    return "unknown profile" if (uuid or "").startswith("MIG-") else None


def _memory_interface(
    probe: Probe,
    cuda: Callable[[str], object],
    ask_nvml: Callable[[str], object],
    whole_card: bool,
) -> tuple[int | None, int | None]:
    """(memory clock in kHz, bus width in bits); NVML stands in, except for slices of a card."""

    def clock_by_nvml() -> object:
        mhz = ask_nvml("max_memory_clock_mhz")
        return mhz * 1000 if isinstance(mhz, int) else mhz

    clocks: list[Callable[[], object]] = [lambda: cuda("MEMORY_CLOCK_RATE")]
    widths: list[Callable[[], object]] = [lambda: cuda("GLOBAL_MEMORY_BUS_WIDTH")]
    if whole_card:
        clocks.append(clock_by_nvml)
        widths.append(lambda: ask_nvml("bus_width_bits"))
    clock = probe.count("memory_clock", *clocks)
    bus = probe.count("memory_bus_width", *widths)
    return clock, bus


def _sheet_l2(row: SheetRow | None) -> int:
    if row is None or row.l2_mib is None:
        raise QueryError("the sheet does not know it either")
    return int(row.l2_mib * MIB)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _cuda_version(number: int | None) -> str | None:
    """13000 is "13.0"."""
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def _driver(probe: Probe) -> str | None:
    return probe.text(
        "driver",
        lambda: probe.machine.nvml("driver_version"),
        lambda: probe.machine.read("/sys/module/nvidia/version"),
    )
