"""What this machine is, what its memory can do, and what can be measured on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from rich.console import Console

from ..kernels.discovery import BACKENDS, backend_unavailable
from .cases import wrong_device
from .device.select import NoSuchDevice, Selected, select, snapshot
from .environment import revision, versions
from .finding import Line
from .presets import PLACEMENTS
from .toolchain import device_nodes, gpu_lines, guarded, host_lines


@dataclass(frozen=True)
class Diagnosis:
    selected: Selected
    lines: list[Line] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 only when a run would work."""
        return 4 if any(line.level == "fail" for line in self.lines) else 0

    def as_json(self) -> dict[str, Any]:
        selected = self.selected
        return {
            "device": msgspec.to_builtins(selected.device),
            "peak": msgspec.to_builtins(selected.peak),
            "peak_reason": selected.peak_reason,
            "peak_candidates": msgspec.to_builtins(selected.peak_candidates),
            "quirks": selected.quirks,
            "warnings": selected.warnings,
            "missing": selected.missing,
            "memory_budget_bytes": selected.memory_budget_bytes,
            "host": selected.host,
            "state": snapshot(selected),
            "versions": versions(),
            "checks": [vars(line) for line in self.lines],
            "exit_code": self.exit_code,
        }


def diagnose(name: str | None, peak: float | None, peak_source: str | None) -> Diagnosis:
    """Raises what `select` raises of words that name no device and no bandwidth.

    Where a GPU was asked for and cannot be used that is what fails, beside what there is instead.
    """
    try:
        selected = select(name, peak, peak_source)
    except NoSuchDevice as error:
        selected = replace(select("cpu"), fallback_reason=str(error))
        first, *rest = _lines(selected)
        return Diagnosis(selected, [replace(first, level="fail"), *rest])
    return Diagnosis(selected, list(_lines(selected)))


def show(diagnosis: Diagnosis) -> None:
    console = Console(soft_wrap=True)
    colour = {"ok": "green", "warn": "yellow", "fail": "red"}
    for line in diagnosis.lines:
        console.print(f"[{colour[line.level]}]{line.level:4}[/] {line.name:10} ", end="")
        remedy = f"; {line.remedy}" if line.remedy else ""
        console.print(line.text + remedy, markup=False, highlight=False)


def _lines(selected: Selected) -> Iterator[Line]:
    device = selected.device
    if selected.fallback_reason:
        remedy = "see nvidia-smi; without --device the CPU is measured instead"
        yield Line("warn", "gpu", f"none: {selected.fallback_reason}", remedy)
        yield from guarded("nodes", device_nodes, selected)
    yield Line("ok", "device", _device(selected))
    yield from _peaks(selected)
    llc = device.llc_bytes / 2**20
    yield Line("ok", "caches", f"{llc:.1f} MiB last level; shapes and eviction go by it")
    yield _memory(selected)
    yield from _placements(selected)
    yield from _backends(selected)
    yield from gpu_lines(selected)
    yield from host_lines(selected)
    for quirk in selected.quirks:
        yield Line("warn", "quirk", quirk, "a run keeps it")
    for warning in selected.warnings:
        yield Line("warn", "warning", warning, "a run keeps it")
    for what, why in selected.missing.items():
        yield Line("warn", "unknown", f"{what}: {why}", "a run goes without, and says so")
    yield from _revision()


def _device(selected: Selected) -> str:
    device = selected.device
    parts = [device.name]
    if device.capability:
        parts.append(f"sm_{device.capability.replace('.', '')}")
    unit = "cores" if device.kind == "cpu" else "multiprocessors"
    parts.append(f"{device.multiprocessors or 'unknown'} {unit}")
    if device.memory_bytes:
        shared = " shared with the host" if device.integrated else ""
        parts.append(f"{device.memory_bytes / 2**30:.1f} GiB{shared}")
    return ", ".join(parts)


def _peaks(selected: Selected) -> Iterator[Line]:
    peak = selected.peak
    if peak is None:
        yield Line("warn", "peak", f"unknown: {selected.peak_reason}", "no percentage of it")
    else:
        text = f"{peak.gbps:.1f} GB/s (1e9 bytes/s) from {peak.source}: {peak.provenance}"
        yield Line("ok", "peak", text)
    for other in selected.peak_candidates:
        if other != peak:
            yield Line(
                "ok", "candidate", f"{other.gbps:.1f} GB/s, {other.source}: {other.provenance}"
            )


def _memory(selected: Selected) -> Line:
    budget = selected.memory_budget_bytes
    text = f"{budget / 2**30:.1f} GiB may be used"
    if selected.device.memory_bytes:
        text += f" of {selected.device.memory_bytes / 2**30:.1f}"
    if budget < 256 * 2**20:
        return Line("fail", "memory", text, "free some: a run needs at least 0.25 GiB")
    return Line("ok", "memory", text)


def _placements(selected: Selected) -> Iterator[Line]:
    """Other memory that kernels reach; what a device does not have is no fault of its."""
    if selected.device.kind == "cuda":
        there = [name for name in PLACEMENTS if name not in selected.unplaceable]
        reasons = "".join(f"; {reason}" for reason in selected.unplaceable.values())
        yield Line("ok", "placements", f"{', '.join(there)}{reasons}")


def _backends(selected: Selected) -> Iterator[Line]:
    usable = 0
    for backend in BACKENDS:
        reason = backend_unavailable(backend)
        if reason:
            yield Line("warn", backend, f"cannot run: {reason}", "the others do without it")
        elif wrong := wrong_device(backend, selected.target):
            yield Line("ok", backend, f"not on this device: {wrong}")
        else:
            usable += 1
            yield Line("ok", backend, "can run")
    if not usable:
        yield Line(
            "fail", "backends", "none can run here", "install the extra that `make setup` names"
        )


def _revision() -> Iterator[Line]:
    at = revision()
    if at.commit is None:
        remedy = "set MEMBOUND_COMMIT to keep it in the run"
        yield Line("warn", "commit", f"unknown: {at.reason}", remedy)
    else:
        state = ", with changes" if at.dirty else ""
        yield Line("ok", "commit", f"{at.commit[:12]}{state}")
