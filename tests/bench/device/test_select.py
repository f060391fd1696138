"""Choosing a device: what may be asked for, and what is said when it is not there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from membound.bench.device.peaks import BadPeak
from membound.bench.device.probe import Machine, QueryError
from membound.bench.device.select import NoSuchDevice, UnknownDevice, select
from membound.tests.bench.device.conftest import HOST_FILES

FIRST = "11111111d72c4106c12f20bd9faed9f6"
SECOND = "22222222d72c4106c12f20bd9faed9f6"


def _card(uuid: str, pci: str, **answers: Any) -> dict[str, Any]:
    return {
        "name": "NVIDIA L4",
        "uuid": uuid,
        "pci_bus_id": pci,
        "COMPUTE_CAPABILITY_MAJOR": 8,
        "COMPUTE_CAPABILITY_MINOR": 9,
        "total_memory": 22704 << 20,
        "INTEGRATED": 0,
        **answers,
    }


@pytest.mark.parametrize(
    "name", ["", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:a", "cuda:00001", "cuda0", "cpu:0", "mps"]
)
def test_an_unknown_name_lists_the_valid_ones(bare: type, name: str) -> None:
    with pytest.raises(UnknownDevice, match="valid: cpu, cuda, cuda:0") as caught:
        select(name, machine=bare())
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        ({"cuda_error": ModuleNotFoundError("No module named 'cuda'")}, "no GPU: none of /dev/nv"),
        (
            {
                "cuda_error": ModuleNotFoundError("No module named 'cuda'"),
                "files": {**HOST_FILES, "/dev/dxg": ""},
            },
            "install the cuda13 or",
        ),
        ({"cuda_error": RuntimeError("libcuda.so.1 not found")}, "the NVIDIA driver is missing"),
        ({"cuda_error": QueryError("CUDA_ERROR_NO_DEVICE")}, "CUDA sees no GPU"),
        ({"cuda_error": QueryError("CUDA_ERROR_UNKNOWN")}, "CUDA cannot start: CUDA_ERROR_UNKNOWN"),
        ({}, "CUDA sees no GPU"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": ""}}, "CUDA_VISIBLE_DEVICES is set and empty"),
        (
            {
                "environment": {"CUDA_VISIBLE_DEVICES": "-1"},
                "cuda_error": QueryError("CUDA_ERROR_NO_DEVICE"),
            },
            "CUDA_VISIBLE_DEVICES='-1': entry 1, '-1', is neither an index nor",
        ),
        (
            {
                "environment": {"CUDA_VISIBLE_DEVICES": "7"},
                "cuda_error": QueryError("CUDA_ERROR_NO_DEVICE"),
                "nvml_error": QueryError("Driver Not Loaded"),
            },
            "CUDA sees no GPU: CUDA_VISIBLE_DEVICES='7'",
        ),
    ],
)
def test_no_gpu_says_why(bare: type, machine: dict[str, Any], reason: str) -> None:
    for name in ("cuda", "cuda:0"):
        with pytest.raises(NoSuchDevice) as caught:
            select(name, machine=bare(**machine))
        assert reason in str(caught.value) and "\n" not in str(caught.value)
    fallback = select(None, machine=bare(**machine))
    assert fallback.device.kind == "cpu" and reason in (fallback.fallback_reason or "")


def test_an_ordinal_beyond_the_last(bare: type) -> None:
    machine = bare(gpus=[_card(FIRST, "0000:01:00.0"), _card(SECOND, "0000:02:00.0")])
    with pytest.raises(NoSuchDevice, match="no cuda:2; there are: cuda:0, cuda:1"):
        select("cuda:2", machine=machine)


def test_a_device_without_a_capability_cannot_be_used(bare: type) -> None:
    machine = bare(gpus=[_card(FIRST, "0000:01:00.0", COMPUTE_CAPABILITY_MAJOR="[N/A]")])
    with pytest.raises(NoSuchDevice, match="does not answer"):
        select("cuda", machine=machine)


def test_the_cpu_has_no_peak_unless_given(bare: type) -> None:
    selected = select("cpu", machine=bare())
    assert selected.peak is None and "--peak GBPS" in (selected.peak_reason or "")
    assert selected.fallback_reason is None
    given = select("cpu", 51.2, "two channels DDR4-3200", bare())
    assert given.peak is not None and given.peak.gbps == 51.2
    assert (given.peak_reason, given.peak_candidates) == (None, [given.peak])
    with pytest.raises(BadPeak):
        select("cpu", -1, machine=bare())


def test_nvml_is_asked_about_the_same_card(bare: type) -> None:
    class TwoCards(bare):  # type: ignore[misc]
        """NVML lists them the other way round, and answers by identity alone."""

        def nvml(self, query: str, identity: str = "") -> object:
            cards = {"GPU-" + dashed(SECOND): 72_000, "0000:01:00.0": 71_000}
            if query == "power_limit_mw":
                return cards[identity]
            if identity not in cards:
                raise QueryError("Not Found")
            return identity if query == "uuid" and identity.startswith("GPU-") else "N/A"

    machine = TwoCards(gpus=[_card(FIRST, "0000:01:00.0"), _card(SECOND, "0000:02:00.0")])
    by_pci = select("cuda:0", machine=machine)
    assert (by_pci.nvml, by_pci.device.power_limit_watts) == ("0000:01:00.0", 71.0)
    assert by_pci.device.uuid == "GPU-" + dashed(FIRST)
    by_uuid = select("cuda:1", machine=machine)
    assert (by_uuid.nvml, by_uuid.device.power_limit_watts) == ("GPU-" + dashed(SECOND), 72.0)
    assert by_uuid.target.ordinal == 1


def dashed(raw: str) -> str:
    return "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))


def test_a_shortened_visible_list_is_warned_of(recorded: Callable[[str], Any]) -> None:
    machine = recorded("L4")
    machine.environment["CUDA_VISIBLE_DEVICES"] = "0,5"
    warnings = select("cuda", machine=machine).warnings
    assert len(warnings) == 1 and "entry 2, '5', is not an index here" in warnings[0]
    machine.environment["CUDA_VISIBLE_DEVICES"] = "MIG-33333333-d72c-4106-c12f-20bd9faed9f6"
    assert select("cuda", machine=machine).warnings == []  # NVML may not list what CUDA can use


def test_unanswered_limits_are_the_architecture_s(bare: type) -> None:
    target = select("cuda", machine=bare(gpus=[_card(FIRST, "0000:01:00.0")])).target
    assert (target.arch, target.sm, target.multiprocessors) == ("sm_89", 89, 60)
    assert target.threads_per_multiprocessor == 1536
    assert target.shared_per_block == 99 << 10
    unknown = _card(FIRST, "0000:01:00.0", COMPUTE_CAPABILITY_MAJOR=10, COMPUTE_CAPABILITY_MINOR=3)
    assert select("cuda", machine=bare(gpus=[unknown])).target.arch == "sm_103"


@pytest.mark.parametrize(
    ("capability", "answer", "most"),
    [
        ((8, 9), {}, 1),
        ((9, 0), {}, 8),
        ((12, 1), {"CLUSTER_LAUNCH": 1}, 8),
        ((9, 0), {"CLUSTER_LAUNCH": 0}, 1),
    ],
)
def test_clusters_are_the_architecture_s_unless_the_device_has_none(
    bare: type, capability: tuple[int, int], answer: dict[str, int], most: int
) -> None:
    named = dict(
        zip(("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR"), capability, strict=True)
    )
    card = _card(FIRST, "0000:01:00.0", **named, **answer)
    assert select("cuda", machine=bare(gpus=[card])).target.blocks_per_cluster == most


def test_a_machine_that_refuses_everything_is_still_described() -> None:
    class Refusing:
        def __getattr__(self, name: str) -> Any:
            def refuse(*arguments: object) -> object:
                raise OSError(13, "Permission denied")

            return refuse

        def environ(self, name: str) -> str | None:
            return None

    machine: Machine = Refusing()
    selected = select(None, machine=machine)
    assert selected.device.kind == "cpu" and selected.memory_budget_bytes > 0
    assert "Permission denied" in (selected.fallback_reason or "")


def test_importing_and_selecting_the_cpu_loads_nothing_heavy() -> None:
    code = (
        "import sys; from membound.bench.device.select import select; select('cpu');"
        "print([m for m in ('torch', 'cuda', 'pynvml', 'numpy', 'numba') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
