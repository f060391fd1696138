"""The gate, the events, the eviction and the clock of a real GPU. Speeds enter as ratios only."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from typing import Any

import pytest
import torch
from membound.bench.cuda_runtime import GATE, CudaRuntime
from membound.bench.device.live import NVML_QUERIES, Live
from membound.bench.gpu import GpuTiming
from membound.kernels.backends.cuda_nvrtc import NvrtcToolchain
from membound.kernels.spec import Launch
from membound.tests.gpu.conftest import Gpu

pytestmark = pytest.mark.gpu

_SAMPLES = 15


@pytest.fixture
def copies(gpu: Gpu) -> list[Launch]:
    """Two copies between buffers of 5 last-level caches each: their caches hold nothing of use."""
    elements = 5 * gpu.selected.target.llc_bytes // 4
    buffers = [torch.ones(elements, device=gpu.device) for _ in range(4)]

    def copy(source: torch.Tensor, target: torch.Tensor) -> Launch:
        def launch() -> None:
            target.copy_(source)

        return launch

    return [copy(buffers[0], buffers[1]), copy(buffers[2], buffers[3])]


def seconds(sample: Callable[[], float | None]) -> float:
    taken = [sample() for _ in range(_SAMPLES)]
    sound = [value for value in taken if value is not None]
    assert len(sound) > _SAMPLES // 2, taken
    return median(sound)


def test_a_closed_gate_holds_and_an_open_one_lets_go(gpu: Gpu) -> None:
    runtime, seen = gpu.runtime, torch.zeros(1, device=gpu.device)
    seen.fill_(0.0)  # loads the kernel, which must not wait for the gate
    runtime.synchronize()
    runtime.close_gate()
    seen.fill_(1.0)
    time.sleep(0.05)
    held = not runtime.stream.query()
    assert runtime.open_gate()
    assert held
    assert seen.item() == 1.0


def test_a_gate_that_nobody_opens_lets_go_and_says_so(gpu: Gpu) -> None:
    gpu.runtime.close_gate()
    gpu.runtime.synchronize()
    assert not gpu.runtime.open_gate()
    gpu.runtime.close_gate()
    assert gpu.runtime.open_gate()


def test_what_synchronises_behind_the_gate_is_void(gpu: Gpu, copies: list[Launch]) -> None:
    def synchronises() -> None:
        copies[0]()
        gpu.runtime.synchronize()

    assert gpu.timing.cold(synchronises)() is None
    assert gpu.timing.cold(copies[0])() is not None


def test_what_allocates_behind_the_gate_is_void(gpu: Gpu) -> None:
    kept: list[torch.Tensor] = []
    torch.cuda.empty_cache()  # nothing is left that could be handed out again

    def allocates() -> None:
        kept.append(torch.empty((64 + len(kept)) << 20, dtype=torch.uint8, device=gpu.device))

    before = gpu.runtime.driver_allocations()
    sample = gpu.timing.cold(allocates)
    assert gpu.runtime.driver_allocations() > before
    assert sample() is None


def test_time_grows_with_the_work_between_the_events(gpu: Gpu, copies: list[Launch]) -> None:
    runtime = gpu.runtime

    def of(count: int) -> Callable[[], float | None]:
        def sample() -> float | None:
            runtime.close_gate()
            copies[0]()  # before the start: not counted
            runtime.start()
            for _ in range(count):
                copies[0]()
            runtime.stop()
            copies[1]()  # after the stop: not counted
            held = runtime.open_gate()
            return runtime.elapsed_seconds() if held else None

        return sample

    copies[0]()
    runtime.synchronize()
    two, eight = seconds(of(2)), seconds(of(8))
    assert 3.0 < eight / two < 5.0


def test_eviction_evicts(gpu: Gpu) -> None:
    """After it a quarter of the cache comes no faster than what no cache can hold."""
    llc, proven = gpu.selected.target.llc_bytes, gpu.timing.eviction_multiple
    after = llc / 4 / seconds(gpu.timing.cold(gpu.runtime.reread))
    gpu.runtime.size_evictor(8)
    try:
        streamed = 8 * llc / seconds(gpu.timing.cold(gpu.runtime.evict))
    finally:
        gpu.runtime.size_evictor(proven)
    assert after < 1.25 * streamed


def test_a_copy_beyond_the_cache_is_alike_cold_and_steady(gpu: Gpu, copies: list[Launch]) -> None:
    cold, steady = seconds(gpu.timing.cold(copies[0])), seconds(gpu.timing.steady(copies))
    assert 0.6 < cold / steady < 1.5


def test_a_graph_replays_what_events_time(gpu: Gpu, copies: list[Launch]) -> None:
    events = seconds(gpu.timing.steady(copies))
    replayed = GpuTiming(gpu.runtime, graph=True, default_mhz=None)
    assert 0.8 < seconds(replayed.steady(copies)) / events < 1.25


def test_the_clock_is_one_that_a_gpu_can_have(gpu: Gpu) -> None:
    def long_enough() -> None:
        for _ in range(32):
            gpu.runtime.evict()

    sample, clocks = gpu.timing.cold(long_enough), []
    for _ in range(_SAMPLES):
        sample()
        clocks.append(gpu.timing.clock_mhz())
    known = [clock for clock in clocks if clock is not None]
    assert known, "no sample had both stamps and 200 µs between them"
    assert 100 < median(known) < 5000
    default = gpu.selected.device.sm_clock_mhz
    assert default is None or median(known) < 1.5 * default


def test_enqueuing_takes_time_on_the_host(gpu: Gpu, copies: list[Launch]) -> None:
    overhead = gpu.timing.launch_overhead(copies[0])
    assert overhead is not None
    assert overhead > 0.0


def test_a_loaded_kernel_has_attributes(gpu: Gpu) -> None:
    (gate,) = NvrtcToolchain().build(GATE, ["gate"], gpu.selected.target)
    assert gate.attributes["registers"] > 0
    assert gate.attributes["local_bytes"] == 0


def test_cuda_and_torch_name_the_same_device(gpu: Gpu) -> None:
    live, ordinal = Live(), gpu.selected.target.ordinal
    properties = torch.cuda.get_device_properties(gpu.device)
    assert live.cuda("name", ordinal) == properties.name
    assert live.cuda("MULTIPROCESSOR_COUNT", ordinal) == properties.multi_processor_count
    free = live.cuda("free_memory", ordinal)
    assert isinstance(free, int)
    assert 0 < free <= properties.total_memory


@pytest.mark.parametrize("query", NVML_QUERIES)
def test_nvml_answers_or_says_that_it_cannot(gpu: Gpu, query: str) -> None:
    pynvml: Any = pytest.importorskip("pynvml")
    if gpu.selected.nvml is None:
        pytest.skip("NVML does not know this device")
    with suppress(pynvml.NVMLError):
        Live().nvml(query, gpu.selected.nvml)


def test_a_second_runtime_has_a_gate_of_its_own(gpu: Gpu) -> None:
    other = CudaRuntime(gpu.device, gpu.selected.target)
    try:
        other.close_gate()
        assert other.open_gate()
    finally:
        torch.cuda.set_stream(gpu.runtime.stream)
