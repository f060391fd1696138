"""The GPU of this machine, its runtime and its timer; without one, every test here is skipped."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from membound.bench.arena import Arena
from membound.bench.cuda_runtime import CudaRuntime
from membound.bench.device.select import NoSuchDevice, select
from membound.bench.device.selected import Selected
from membound.bench.gpu import GpuTiming
from membound.tests.gpu.lab import Lab

_ARENA_BYTES = 2 << 30


@dataclass(frozen=True)
class Gpu:
    selected: Selected
    device: torch.device
    runtime: CudaRuntime
    timing: GpuTiming
    lab: Lab


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    try:
        selected = select("cuda")
    except NoSuchDevice as error:
        pytest.skip(str(error))
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} has no CUDA or sees no GPU")
    device = torch.device("cuda", selected.target.ordinal)
    runtime = CudaRuntime(device, selected.target)
    timing = GpuTiming(runtime, default_mhz=None)  # voids no sample for its clock
    arena = Arena(device, min(_ARENA_BYTES, selected.memory_budget_bytes))
    lab = Lab(selected.target, device, arena, runtime.stream, timing.synchronize)
    return Gpu(selected, device, runtime, timing, lab)
