"""A chosen device with everything known of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...kernels.target import Target
from ...results.record import Device, Peak, Placement
from .live import Live
from .probe import Machine


@dataclass(frozen=True)
class Selected:
    """One device, and what is known and unknown of it."""

    device: Device
    target: Target
    peak: Peak | None
    peak_reason: str | None
    peak_candidates: list[Peak]
    quirks: list[str]
    warnings: list[str]
    missing: dict[str, str]
    memory_budget_bytes: int
    host: dict[str, str]
    fallback_reason: str | None = None  # why the CPU was taken when nothing was asked for
    nvml: str | None = None  # by which NVML knows the device
    cpus: tuple[int, ...] = ()
    machine: Machine = field(default_factory=Live, repr=False)
    host_budget_bytes: int | None = None  # of host memory where that is not the device's too
    unplaceable: dict[Placement, str] = field(default_factory=dict)  # why not measured there
