"""How much memory a run may use, on machines where being wrong freezes the host."""

from __future__ import annotations

from typing import Any

import pytest
from membound.bench.device.memory import (
    WITHOUT_ANSWER,
    HostMemory,
    cgroup_left,
    device_budget,
    host_budget,
    host_memory,
    parse_meminfo,
)
from membound.bench.device.probe import Probe
from membound.bench.device.select import select

GIB = 1 << 30


def _gpu(bare: type, meminfo: str | None, **answers: Any) -> Any:
    machine = bare(
        gpus=[
            {
                "name": "NVIDIA Something",
                "COMPUTE_CAPABILITY_MAJOR": 9,
                "COMPUTE_CAPABILITY_MINOR": 0,
                "total_memory": 32 * GIB,
                **answers,
            }
        ]
    )
    if meminfo is None:
        del machine.files["/proc/meminfo"]
    else:
        machine.files["/proc/meminfo"] = meminfo
    return machine


SPARK = "MemTotal: 127600748 kB\nMemFree: 900000 kB\nMemAvailable: 7759462 kB\n"
DISCRETE_HOST = "MemTotal: 65536000 kB\nMemAvailable: 57671680 kB\n"


@pytest.mark.parametrize("free", [0, 1, 120 * GIB, {"error": "CUDA_ERROR_OUT_OF_MEMORY"}])
def test_integrated_uses_half_of_what_is_available(bare: type, free: Any) -> None:
    machine = _gpu(bare, SPARK, INTEGRATED=1, free_memory=free)
    assert select("cuda", machine=machine).memory_budget_bytes == 7759462 * 1024 // 2


def test_a_name_known_as_integrated_is_believed_over_the_attribute(bare: type) -> None:
    machine = _gpu(bare, SPARK, INTEGRATED=0, name="NVIDIA GB10", free_memory=100 * GIB)
    selected = select("cuda", machine=machine)
    assert selected.device.integrated is True
    assert selected.memory_budget_bytes == 7759462 * 1024 // 2


def test_integrated_without_meminfo_stays_small(bare: type) -> None:
    machine = _gpu(bare, None, INTEGRATED=1, free_memory=100 * GIB)
    selected = select("cuda", machine=machine)
    assert selected.memory_budget_bytes == WITHOUT_ANSWER
    assert "host.MemAvailable" in selected.missing


def test_discrete_uses_its_own_free_memory(bare: type) -> None:
    machine = _gpu(bare, DISCRETE_HOST, INTEGRATED=0, UNIFIED_ADDRESSING=1, free_memory=30 * GIB)
    assert select("cuda", machine=machine).memory_budget_bytes == int(30 * GIB * 0.9)
    full = _gpu(bare, DISCRETE_HOST, INTEGRATED=0, free_memory=0)
    assert select("cuda", machine=full).memory_budget_bytes == 0


def test_discrete_without_an_answer_takes_half_of_the_total(bare: type) -> None:
    selected = select("cuda", machine=_gpu(bare, DISCRETE_HOST, INTEGRATED=0))
    assert selected.memory_budget_bytes == 16 * GIB
    assert "half of the total" in selected.missing["free_memory"]


def test_unknown_kind_exhausts_neither_memory(bare: type) -> None:
    machine = _gpu(bare, SPARK, free_memory=30 * GIB)
    assert select("cuda", machine=machine).memory_budget_bytes == 7759462 * 1024 // 2


def test_budgets() -> None:
    assert host_budget(HostMemory(total=None, available=10)) == 5
    assert device_budget(100) == 90


def test_meminfo_is_read_as_bytes_and_noise_left_out() -> None:
    fields = parse_meminfo("MemTotal: 2 kB\nHugePages_Total: 3\nMemFree: x kB\n\nMemAvailable:\n")
    assert fields == {"MemTotal": 2048}


def test_the_tightest_control_group_counts(bare: type) -> None:
    machine = bare()
    machine.files |= {
        "/proc/self/cgroup": "0::/user/run\n",
        "/sys/fs/cgroup/user/memory.max": f"{8 * GIB}\n",
        "/sys/fs/cgroup/user/memory.current": f"{3 * GIB}\n",
        "/sys/fs/cgroup/user/memory.stat": f"anon 1\ninactive_file {GIB}\n",
        "/sys/fs/cgroup/user/run/memory.max": "max\n",
        "/sys/fs/cgroup/user/run/memory.current": "5\n",
    }
    assert cgroup_left(Probe(machine)) == 6 * GIB
    assert host_memory(Probe(machine)).available == 6 * GIB
    assert select("cpu", machine=machine).memory_budget_bytes == 3 * GIB


def test_version_one_control_groups(bare: type) -> None:
    machine = bare()
    machine.files |= {
        "/proc/self/cgroup": "4:memory:/docker/abc\n1:cpu:/\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": "7\n",
        "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes": f"{GIB}\n",
        "/sys/fs/cgroup/memory/docker/memory.usage_in_bytes": f"{2 * GIB}\n",
    }
    assert cgroup_left(Probe(machine)) == 0
    assert cgroup_left(Probe(bare())) is None
