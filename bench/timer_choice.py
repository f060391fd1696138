"""Which timer a run uses: the one asked for, else what this machine's surroundings admit."""

from __future__ import annotations

from collections.abc import Iterable

from ..results.record import Timer
from . import cupti
from .device.probe import Probe
from .device.selected import Selected
from .presets import UnknownName

_CUDA: tuple[Timer, ...] = ("events", "events-ungated", "graph", "cupti")
_CPU: tuple[Timer, ...] = ("wall",)

_PROFILERS = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
_MPS = "CUDA_MPS_PIPE_DIRECTORY"
_MPS_PROCESS = "nvidia-cuda-mps"  # -control or -server: /proc keeps 15 letters


class TimerUnavailable(Exception):
    """A timer that was asked for and cannot be had here; the message says why."""

    exit_code = 4


def choose_timer(asked: str | None, selected: Selected, caches: Iterable[str]) -> Timer:
    """Never another one than `asked`.

    Raises UnknownName where the device or a cache state has no such timer, and TimerUnavailable.
    """
    if asked is None:
        return usual_timer(selected)
    valid = _CUDA if selected.target.kind == "cuda" else _CPU
    timer = next((timer for timer in valid if timer == asked), None)
    if timer is None:
        raise UnknownName(f"no timer {asked!r} on this device; valid: {', '.join(valid)}")
    if timer == "graph" and "cold" in caches:
        raise UnknownName("a graph rotates its buffers: --timer graph needs --cache steady")
    reason = cupti.unavailable() if timer == "cupti" else None
    if reason is not None:
        raise TimerUnavailable(f"--timer cupti cannot be used: {reason}")
    return timer


def usual_timer(selected: Selected) -> Timer:
    """`wall` on the CPU, else `events`, without the gate where something may stall it."""
    if selected.target.kind == "cpu":
        return "wall"
    return "events-ungated" if stalls_gate(selected) else "events"


def timer_warnings(timer: Timer, selected: Selected) -> list[str]:
    """What a reader of the run must know of its timer."""
    reason = stalls_gate(selected) if selected.target.kind == "cuda" else None
    if reason is None:
        return []
    if timer in ("events", "graph"):
        return [f"timer {timer} behind a gate that may stall, and void its samples: {reason}"]
    return [f"timer {timer}, without a gate, so that times may hold gaps: {reason}"]


def stalls_gate(selected: Selected) -> str | None:
    """Why a kernel that waits for the host may wait in vain here; None where nothing says so."""
    probe = Probe(selected.machine)
    if selected.host.get("wsl") == "yes":
        return "WSL: Windows' driver batches launches"
    for name in _PROFILERS:
        if probe.text(name, lambda name=name: probe.machine.environ(name)):  # type: ignore[misc]
            return f"a profiler is attached ({name} is set)"
    if probe.text(_MPS, lambda: probe.machine.environ(_MPS)):
        return f"MPS ({_MPS} is set)"
    names = (probe.file(path) or "" for path in probe.paths("/proc/[0-9]*/comm"))
    if any(name.startswith(_MPS_PROCESS) for name in names):
        return "MPS: its control daemon is running"
    return None
