"""From a plan to a session: the device, its stream and clock, and the memory to measure in."""

from __future__ import annotations

from pathlib import Path

import torch

from ..kernels.discovery import discover
from ..kernels.target import Target
from .arena import Arena
from .protocol import Plan
from .session import Session
from .timers import Timing, WallTiming


def start(plan: Plan) -> Session:
    """Raises what the device raises when it cannot be used."""
    target = Target(**plan.target)  # type: ignore[arg-type]
    if plan.kind == "cpu":
        torch.set_num_threads(target.multiprocessors)
        device = torch.device("cpu")
        timing: Timing = WallTiming(target.llc_bytes)
    else:
        from .cuda_runtime import CudaRuntime
        from .gpu import GpuTiming

        device = torch.device("cuda", plan.ordinal)
        runtime = CudaRuntime(device, target)
        timing = GpuTiming(runtime, graph=plan.timer == "graph", default_mhz=plan.default_mhz)
    return Session(
        plan=plan,
        catalogue=discover(Path(path) for path in plan.kernels),
        target=target,
        device=device,
        arena=Arena(device, plan.budget_bytes),
        timing=timing,
    )
