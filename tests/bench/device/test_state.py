"""Snapshots and foreign processes, and the live machine against a stand-in driver."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from membound.bench.device.live import NVML_QUERIES, Live
from membound.bench.device.probe import Probe, QueryError
from membound.bench.device.select import compute_processes, select, snapshot

Recording = Callable[[str], Any]


def test_a_snapshot_holds_what_is_known(recorded: Recording) -> None:
    assert snapshot(select("cuda", machine=recorded("GB10"))) == {
        "load_average": 0.25,
        "governor": "performance",
        "memory_available_bytes": 121320243 * 1024.0,
        "sm_clock_mhz": 2405.0,
        "temperature_celsius": 38.0,
        "power_watts": 3.0,
    }
    machine = recorded("H200")
    machine.nvml_answers["clock_event_reasons"] = 0x4 | 0x20 | 0x1
    state = snapshot(select("cuda", machine=machine))
    assert state["clocks_slowed_by"] == "power cap, thermal (software)"
    machine.nvml_answers["clock_event_reasons"] = 1
    assert snapshot(select("cuda", machine=machine))["clocks_slowed_by"] == "nothing"


def test_nvml_vanishing_leaves_the_host(recorded: Recording) -> None:
    machine = recorded("H200")
    selected = select("cuda", machine=machine)
    machine.nvml_error = QueryError("GPU is lost")
    assert set(snapshot(selected)) == {"load_average", "governor", "memory_available_bytes"}
    assert compute_processes(selected) is None


def test_strangers_are_named(recorded: Recording) -> None:
    machine = recorded("H200")
    machine.files |= {
        "/proc/100/stat": "100 (python) S 1 100",
        "/proc/101/stat": "101 (odd ) (name) S 100 100",
        "/proc/102/stat": "102 (worker) S 101 100",
        "/proc/900/stat": "900 (train) S 1 900",
        "/proc/900/comm": "train\n",
    }
    machine.nvml_answers["compute_pids"] = [100, 101, 102, 900, 901, 300]
    machine.nvml_answers["graphics_pids"] = [300, 301]
    selected = select("cuda", machine=machine)
    assert compute_processes(selected) == ["900 train", "901 (not visible from here)"]
    machine.nvml_answers["compute_pids"] = [100]
    assert compute_processes(selected) == []


def test_unknown_processes_are_not_no_processes(recorded: Recording, bare: type) -> None:
    assert compute_processes(select("cuda", machine=recorded("WSL2"))) is None
    assert compute_processes(select("cuda", machine=recorded("container without NVML"))) is None
    assert compute_processes(select("cpu", machine=bare())) is None


def test_this_machine_answers() -> None:
    selected = select("cpu")
    assert selected.memory_budget_bytes > 0 and selected.device.llc_bytes > 0
    assert selected.target.multiprocessors >= 1 and selected.device.name
    assert snapshot(selected)["memory_available_bytes"]
    assert pickle.loads(pickle.dumps(selected)).device == selected.device


class _Driver(types.ModuleType):
    """A driver of one device, with the calling convention of cuda.bindings: (error, value…)."""

    class CUresult:
        CUDA_SUCCESS = 0

        def __init__(self, code: int) -> None:
            self.name = {1: "CUDA_ERROR_INVALID_VALUE", 2: "CUDA_ERROR_OUT_OF_MEMORY"}[code]

    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE=36)

    def __init__(self, memory: tuple[int, ...] = (0, 5, 9)) -> None:
        super().__init__("cuda.bindings.driver")
        self.memory = memory
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        if not name.startswith("cu"):
            raise AttributeError(name)
        answers: dict[str, tuple[Any, ...]] = {
            "cuDeviceGetCount": (0, 1),
            "cuDeviceGet": (0, "device"),
            "cuDeviceGetName": (0, b"NVIDIA L4\0\0\0"),
            "cuDeviceGetUuid": (0, SimpleNamespace(bytes=bytes(range(16)))),
            "cuDeviceGetUuid_v2": (0, SimpleNamespace(bytes=bytes(range(16, 32)))),
            "cuDevicePrimaryCtxRetain": (0, "context"),
            "cuMemGetInfo": self.memory,
            "cuDeviceGetAttribute": (0, 6251000),
        }

        def call(*arguments: object) -> tuple[Any, ...]:
            self.calls.append(name)
            return answers.get(name, (0,))

        return call


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[[_Driver], Live]:
    def install(module: _Driver) -> Live:
        bindings = types.ModuleType("cuda.bindings")
        bindings.driver = module  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
        monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
        return Live()

    return install


def test_live_cuda(driver: Callable[[_Driver], Live]) -> None:
    live = driver(_Driver())
    assert live.cuda("count") == 1
    assert live.cuda("name") == "NVIDIA L4"
    assert live.cuda("uuid") == bytes(range(16, 32)).hex()
    assert live.cuda("MEMORY_CLOCK_RATE") == 6251000
    with pytest.raises(AttributeError):
        live.cuda("NO_SUCH_ATTRIBUTE")


@pytest.mark.parametrize("memory", [(0, 5, 9), (2, 0, 0)])
def test_the_context_for_free_memory_is_given_back(
    driver: Callable[[_Driver], Live], memory: tuple[int, ...]
) -> None:
    module = _Driver(memory)
    live = driver(module)
    probe = Probe(live)
    free = probe.count("free", lambda: live.cuda("free_memory"))
    assert free == (5 if memory[0] == 0 else None)
    assert probe.missing == ({} if free else {"free": "CUDA_ERROR_OUT_OF_MEMORY"})
    assert module.calls[-2:] == ["cuCtxPopCurrent", "cuDevicePrimaryCtxRelease"]


def test_every_nvml_query_is_known_to_nvml() -> None:
    nvml = pytest.importorskip("pynvml")
    used = {name for query in NVML_QUERIES.values() for name in query.__code__.co_names}
    names = {name for name in used if name.startswith(("nvml", "NVML"))}
    assert len(names) > 10
    assert [name for name in sorted(names) if not hasattr(nvml, name)] == []


def test_every_cuda_attribute_is_known_to_cuda(recorded: Recording) -> None:
    driver_module = pytest.importorskip("cuda.bindings.driver")
    known = {attribute.name for attribute in driver_module.CUdevice_attribute}

    asked: list[str] = []
    machine = recorded("H200")
    answer = machine.cuda

    def noted(query: str, ordinal: int = 0) -> object:
        asked.append(query)
        return answer(query, ordinal)

    machine.cuda = noted
    select("cuda", machine=machine)
    attributes = {f"CU_DEVICE_ATTRIBUTE_{query}" for query in asked if query.isupper()}
    assert len(attributes) >= 10 and attributes <= known
