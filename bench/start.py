"""From a setting to what measures: device, stream, clock, and the memory to measure in."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..kernels.discovery import discover
from ..kernels.target import Target
from ..results.record import Timer
from .arena import Arena
from .eviction import CpuEvictor
from .placed_memory import PlacedMemory
from .protocol import Setting
from .session import Session
from .timers import Timing, WallTiming

if TYPE_CHECKING:
    from .gpu import Runtime


def start(setting: Setting) -> Session:
    """Raises what the device raises when it cannot be used."""
    target = Target(**setting.target)  # type: ignore[arg-type]
    missing: dict[str, str] = {}
    if setting.kind == "cpu":
        torch.set_num_threads(target.multiprocessors)
        device = torch.device("cpu")
        arena = Arena(device, setting.budget_bytes)
        timing: Timing = WallTiming(CpuEvictor(target.llc_bytes))
    else:
        from .cuda_runtime import CudaRuntime

        # False alarms on newer devices (GB10 is not in torch's list); what cannot run says so.
        alarms = r"(?s).*(Found GPU\d|with CUDA capability sm_)"
        warnings.filterwarnings("ignore", alarms, UserWarning)
        device = torch.device("cuda", setting.ordinal)
        runtime = CudaRuntime(device, target)
        placed = PlacedMemory(device)
        arena = Arena(device, setting.budget_bytes, placed, setting.host_budget_bytes)
        missing = runtime.missing
        timing = gpu_timing(runtime, setting.timer, setting.default_mhz)
    return Session(
        seed=setting.seed,
        catalogue=discover(Path(path) for path in setting.kernels),
        target=target,
        device=device,
        arena=arena,
        timing=timing,
        missing=missing,
    )


def gpu_timing(runtime: Runtime, timer: Timer, default_mhz: int | None) -> Timing:
    """The timer of that name, never another one. Raises what CUPTI raises where it is not to be
    had."""
    from .cupti import CuptiSource, CuptiTiming
    from .gpu import GpuTiming, UngatedTiming

    if timer == "cupti":
        return CuptiTiming(runtime, CuptiSource(), default_mhz=default_mhz)
    if timer == "events-ungated":
        return UngatedTiming(runtime, default_mhz=default_mhz)
    assert timer in ("events", "graph"), timer
    return GpuTiming(runtime, graph=timer == "graph", default_mhz=default_mhz)
