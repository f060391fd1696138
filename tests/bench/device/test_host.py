"""The CPU as a device: its name, its cores, its caches, its folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from membound.bench.device.cpu import processor_name, read_host
from membound.bench.device.identity import device_folder
from membound.bench.device.llc import DEFAULT_CPU_LLC, cpu_llc, parse_size
from membound.bench.device.probe import Probe
from membound.bench.device.select import select
from membound.results.record import Device

MIB = 1 << 20
GIB = 1 << 30
SPARK_CPU = "".join(
    f"CPU implementer\t: 0x41\nCPU part\t: {'0xd87' if n % 10 < 5 else '0xd85'}\n\n"
    for n in range(20)
)


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (
            "model name\t: Intel(R) Xeon(R)  Processor\ncpu MHz: 2600\n",
            "Intel(R) Xeon(R) Processor",
        ),
        (SPARK_CPU, "10x Cortex-A725 + 10x Cortex-X925"),
        ("CPU implementer: 0x41\nCPU part: 0xd4f\n", "1x Neoverse-V2"),
        ("CPU implementer: 0x46\nCPU part: 0x001\n", "1x Arm 0x46 part 0x001"),
        ("processor: 0\n", None),
        ("", None),
    ],
)
def test_processor_name(cpuinfo: str, name: str | None) -> None:
    assert processor_name(cpuinfo) == name


def test_a_changing_clock_is_not_identity() -> None:
    first, second = ("model name: X\ncpu MHz: " + mhz for mhz in ("2899.996", "2901.234"))
    assert processor_name(first) == processor_name(second)


def test_the_board_names_a_processor_that_does_not(bare: type) -> None:
    machine = bare(machine="aarch64")
    machine.files["/proc/cpuinfo"] = "processor: 0\n"
    machine.files["/proc/device-tree/model"] = "NVIDIA Jetson AGX Orin\0"
    assert read_host(Probe(machine)).processor == "NVIDIA Jetson AGX Orin"
    del machine.files["/proc/device-tree/model"]
    assert read_host(Probe(machine)).processor == "unknown aarch64 processor"


@pytest.mark.parametrize(
    ("files", "cores", "reason"),
    [
        ({}, 4, "affinity of 4 CPUs"),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, 4, "affinity of 4 CPUs"),
        ({"/sys/fs/cgroup/cpu.max": "250000 100000"}, 2, "quota of 2.5 of 4 CPUs"),
        ({"/sys/fs/cgroup/cpu.max": "50000 100000"}, 1, "quota of 0.5 of 4 CPUs"),
        ({"/sys/fs/cgroup/cpu.max": "nonsense"}, 4, "affinity"),
    ],
)
def test_cores(bare: type, files: dict[str, str], cores: int, reason: str) -> None:
    machine = bare()
    machine.files |= {"/proc/self/cgroup": "0::/\n", **files}
    host = read_host(Probe(machine))
    assert host.cores == cores and reason in host.cores_reason


def test_version_one_quota(bare: type) -> None:
    machine = bare()
    machine.files |= {
        "/proc/self/cgroup": "1:cpu,cpuacct:/box\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "300000\n",
        "/sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
    }
    assert read_host(Probe(machine)).cores == 3


def test_surroundings(bare: type) -> None:
    host = select("cpu", machine=bare()).host
    assert host["wsl"] == "no" and host["container"] == "no" and host["governor"] == "performance"
    assert host["transparent_huge_pages"] == "madvise"
    machine = bare(environment={"container": "podman"})
    machine.files["/proc/sys/kernel/osrelease"] = "5.15.167.4-Microsoft-standard-WSL2\n"
    machine.files["/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor"] = "powersave\n"
    selected = select("cpu", machine=machine)
    assert selected.host["wsl"] == "yes" and selected.host["container"] == "podman"
    assert selected.host["governor"] == "performance+powersave"
    assert any("WSL" in quirk for quirk in selected.quirks)
    assert any("governor" in quirk for quirk in selected.quirks)
    kubernetes = bare()
    kubernetes.files["/proc/self/cgroup"] = "0::/kubepods/pod1\n"
    assert select("cpu", machine=kubernetes).host["container"] == "kubepods"


def _cache(cpu: int, index: int, level: int, kind: str, size: str, shared: str) -> dict[str, str]:
    folder = f"/sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    return {
        f"{folder}/level": f"{level}\n",
        f"{folder}/type": f"{kind}\n",
        f"{folder}/size": f"{size}\n",
        f"{folder}/shared_cpu_list": f"{shared}\n",
    }


def test_the_last_level_is_summed_over_its_instances(bare: type) -> None:
    machine = bare()
    for cpu in range(4):
        half = "0-1" if cpu < 2 else "2-3"
        machine.files |= _cache(cpu, 0, 1, "Data", "48K", str(cpu))
        machine.files |= _cache(cpu, 1, 1, "Instruction", "64K", str(cpu))
        machine.files |= _cache(cpu, 2, 2, "Unified", "2048K", str(cpu))
        machine.files |= _cache(cpu, 3, 3, "Unified", "16384K", half)
        machine.files |= _cache(cpu, 4, 4, "Instruction", "1G", half)
    assert cpu_llc(Probe(machine), [0, 1]) == 16 * MIB
    assert cpu_llc(Probe(machine), [0, 1, 2, 3]) == 32 * MIB


def test_without_a_last_level_every_second_level_counts(bare: type) -> None:
    machine = bare()
    for cpu in range(2):
        machine.files |= _cache(cpu, 0, 2, "Unified", "1M", "")
    assert cpu_llc(Probe(machine), [0, 1]) == 2 * MIB


def test_no_cache_named_is_a_stated_default(bare: type) -> None:
    selected = select("cpu", machine=bare())
    assert selected.device.llc_bytes == selected.target.llc_bytes == DEFAULT_CPU_LLC
    assert selected.device.l2_bytes is None and "32 MiB assumed" in selected.missing["llc"]


def test_a_guest_does_not_own_the_cache_of_its_host(bare: type) -> None:
    machine = bare(cpus=[0, 1])
    machine.files["/proc/cpuinfo"] = "model name: X\nflags: fpu hypervisor lahf_lm\n"
    for cpu in range(2):
        machine.files |= _cache(cpu, 3, 3, "Unified", "491520K", "0-1")
    selected = select("cpu", machine=machine)
    assert selected.device.l2_bytes == 480 * MIB
    assert selected.device.llc_bytes == 192 * MIB
    assert "480 MiB, the host's cache" in selected.missing["llc"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("48K", 48 << 10), ("2M", 2 << 20), ("512", 512), ("0K", None), ("big", None), ("", None)],
)
def test_parse_size(text: str, size: int | None) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("device", "folder"),
    [
        (
            Device(kind="cpu", name="Intel(R) Core(TM) i7-8700 CPU @ 3.20GHz", multiprocessors=6,
                   memory_bytes=16 * GIB, llc_bytes=1),
            "Intel-Core-i7-8700-6-cores-16GiB",
        ),
        (Device(kind="cuda", name="../../etc/passwd", memory_bytes=8 * GIB, llc_bytes=1),
         "etc-passwd-8GiB"),
        (Device(kind="cuda", name="\0\n", llc_bytes=1), "unknown-cuda"),
        (Device(kind="cuda", name="NVIDIA Thor", mig="unknown profile", llc_bytes=1),
         "NVIDIA-Thor-MIG-unknown-profile"),
    ],
)  # fmt: skip
def test_folder(device: Device, folder: str) -> None:
    assert device_folder(device) == folder


@pytest.mark.parametrize("name", ["x" * 5000, "." * 40, "Ünïcode GPU ☃", "a b/c\\d:e*f", "-rf"])
def test_a_folder_is_one_safe_name(name: str) -> None:
    folder = device_folder(Device(kind="cuda", name=name, memory_bytes=8 * GIB, llc_bytes=1))
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,119}", folder)
    assert Path(folder).name == folder and folder not in (".", "..")
