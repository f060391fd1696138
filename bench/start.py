"""From a setting to a session: the device, its stream and clock, and the memory to measure in."""

from __future__ import annotations

from pathlib import Path

import torch

from ..kernels.discovery import discover
from ..kernels.target import Target
from .arena import Arena
from .protocol import Setting
from .session import Session
from .timers import Timing, WallTiming


def start(setting: Setting) -> Session:
    """Raises what the device raises when it cannot be used."""
    target = Target(**setting.target)  # type: ignore[arg-type]
    if setting.kind == "cpu":
        torch.set_num_threads(target.multiprocessors)
        device = torch.device("cpu")
        timing: Timing = WallTiming(target.llc_bytes)
    else:
        from .cuda_runtime import CudaRuntime
        from .gpu import GpuTiming

        device = torch.device("cuda", setting.ordinal)
        runtime = CudaRuntime(device, target)
        timing = GpuTiming(runtime, graph=setting.timer == "graph", default_mhz=setting.default_mhz)
    return Session(
        seed=setting.seed,
        catalogue=discover(Path(path) for path in setting.kernels),
        target=target,
        device=device,
        arena=Arena(device, setting.budget_bytes),
        timing=timing,
    )
