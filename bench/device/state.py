"""What changes while a run goes on: clocks, power, temperature, load, and who else computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .cpu import read_governor
from .memory import parse_meminfo
from .probe import Probe
from .selected import Selected

# nvmlClocksEventReason…: bits that mean the GPU runs below what it could.
_SLOWED = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


def snapshot(selected: Selected) -> dict[str, str | float]:
    """What can be known now; what cannot is absent. MHz, watts, degrees Celsius, bytes."""
    probe = Probe(selected.machine)
    state: dict[str, str | float] = dict(_host_state(probe, selected.cpus))
    if selected.nvml is None:
        return state
    for name in ("sm_clock_mhz", "memory_clock_mhz", "temperature_celsius"):
        value = probe.count(name, _nvml(selected, name))
        if value is not None:
            state[name] = float(value)
    milliwatts = probe.count("power", _nvml(selected, "power_mw"))
    if milliwatts is not None:
        state["power_watts"] = milliwatts / 1000
    reasons = probe.count("reasons", _nvml(selected, "clock_event_reasons"), zero=True)
    if reasons is not None:
        slowed = [text for bit, text in _SLOWED.items() if reasons & bit]
        state["clocks_slowed_by"] = ", ".join(slowed) or "nothing"
    return state


def compute_processes(selected: Selected) -> list[str] | None:
    """Other processes that compute on the GPU, "1234 python" each; None: unknown.

    This process and its descendants are left out, and so are processes that also draw (a desktop
    holds compute contexts without computing). In a container NVML may count in the host's numbers:
    call it while no worker of this run holds a context, so that none can be taken for a stranger.
    """
    probe = Probe(selected.machine)
    compute = _pids(selected, "compute_pids")
    if compute is None:
        return None
    drawing = _pids(selected, "graphics_pids") or []
    own = _descendants(probe, selected.machine.pid())
    others = sorted(set(compute) - set(drawing) - own)
    return [f"{pid} {_command(probe, pid)}" for pid in others]


def _nvml(selected: Selected, query: str) -> Callable[[], object]:
    return lambda: selected.machine.nvml(query, selected.nvml or "")


def _pids(selected: Selected, query: str) -> list[int] | None:
    if selected.nvml is None:
        return None
    try:
        answer = _nvml(selected, query)()
    except Exception:
        return None
    if isinstance(answer, str) or not isinstance(answer, Sequence):
        return None
    return [pid for pid in answer if isinstance(pid, int)]


def _host_state(probe: Probe, cpus: Sequence[int]) -> dict[str, str | float]:
    state: dict[str, str | float] = {}
    load = (probe.file("/proc/loadavg") or "").split()
    if load:
        try:
            state["load_average"] = float(load[0])
        except ValueError:
            probe.missing["load_average"] = f"answered {load[0]!r}"
    governor = read_governor(probe, cpus)
    if governor is not None:
        state["governor"] = governor
    available = parse_meminfo(probe.file("/proc/meminfo") or "").get("MemAvailable")
    if available is not None:
        state["memory_available_bytes"] = float(available)
    return state


def _descendants(probe: Probe, pid: int) -> set[int]:
    """`pid` and every process below it, by the parent that /proc names."""
    children: dict[int, list[int]] = {}
    for path in probe.paths("/proc/[0-9]*/stat"):
        number = path.split("/")[2]
        # The command, in parentheses, may itself hold spaces and parentheses.
        fields = (probe.file(path) or "").rpartition(")")[2].split()
        if number.isdecimal() and len(fields) > 1 and fields[1].isdecimal():
            children.setdefault(int(fields[1]), []).append(int(number))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += children.get(current, [])
    return found


def _command(probe: Probe, pid: int) -> str:
    return (probe.file(f"/proc/{pid}/comm") or "").strip() or "(not visible from here)"
