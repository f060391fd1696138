"""Timers without a gate on a real GPU, beside the gated one. Speeds enter as ratios only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from membound.bench import cupti
from membound.bench.cupti import CuptiSource, CuptiTiming
from membound.bench.gpu import UngatedTiming
from membound.kernels.spec import Launch
from membound.tests.gpu.conftest import Gpu
from membound.tests.gpu.test_timing import seconds

pytestmark = pytest.mark.gpu


@pytest.fixture
def copies(gpu: Gpu) -> list[Launch]:
    """Two copies by the driver's memcpy, two by a kernel, between buffers no cache can hold."""
    elements = 5 * gpu.selected.target.llc_bytes // 4
    one, two, three, four = (torch.ones(elements, device=gpu.device) for _ in range(4))

    def copy(source: torch.Tensor, target: torch.Tensor) -> Launch:
        def launch() -> None:
            target.copy_(source)

        return launch

    def add(source: torch.Tensor, target: torch.Tensor) -> Launch:
        def launch() -> None:
            torch.add(source, 1.0, out=target)

        return launch

    return [copy(one, two), copy(three, four), add(one, two), add(three, four)]


@pytest.fixture
def source() -> Iterator[CuptiSource]:
    reason = cupti.unavailable()
    if reason is not None:
        pytest.skip(reason)
    made = CuptiSource()
    yield made
    made.close()


def agrees(gpu: Gpu, timing: UngatedTiming, copies: list[Launch]) -> None:
    for launches in (copies[:2], copies[2:]):
        cold = seconds(timing.cold(launches[0])) / seconds(gpu.timing.cold(launches[0]))
        steady = seconds(timing.steady(launches)) / seconds(gpu.timing.steady(launches))
        assert 0.8 < cold < 1.25
        assert 0.8 < steady < 1.25


def test_events_need_no_gate_for_what_is_long(gpu: Gpu, copies: list[Launch]) -> None:
    agrees(gpu, UngatedTiming(gpu.runtime, default_mhz=None), copies)


def test_activity_records_agree_with_events(
    gpu: Gpu, copies: list[Launch], source: CuptiSource
) -> None:
    timing = CuptiTiming(gpu.runtime, source, default_mhz=None)
    assert 32e-9 <= timing.granularity <= 2e-6
    agrees(gpu, timing, copies)


def test_why_lines_may_persist_is_known(gpu: Gpu) -> None:
    assert all(reason.startswith("CUDA_ERROR_") for reason in gpu.runtime.missing.values())
