"""Which timer is taken, and what else is never taken in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from membound.bench import cupti
from membound.bench.cuda_runtime import reset_persisting_lines
from membound.bench.device.select import Selected, select
from membound.bench.presets import Selection, UnknownName
from membound.bench.run import Request, measure
from membound.bench.timer_choice import (
    TimerUnavailable,
    choose_timer,
    stalls_gate,
    timer_warnings,
    usual_timer,
)
from membound.kernels.target import reference_target
from membound.tests.bench.device.conftest import Recorded
from membound.tests.bench.test_run import Watcher


@pytest.fixture(scope="module")
def cpu() -> Selected:
    return select("cpu")


def gpu(cpu: Selected, machine: Recorded | None = None, wsl: str = "no") -> Selected:
    target = reference_target("sm_90")
    return replace(cpu, target=target, machine=machine or Recorded(), host={"wsl": wsl})


def test_the_usual_timers(cpu: Selected) -> None:
    assert usual_timer(cpu) == choose_timer(None, cpu, {"cold"}) == "wall"
    assert usual_timer(gpu(cpu)) == choose_timer(None, gpu(cpu), {"cold"}) == "events"
    assert timer_warnings("wall", cpu) == timer_warnings("events", gpu(cpu)) == []


STALLS: dict[str, Callable[[Selected], Selected]] = {
    "WSL": lambda cpu: gpu(cpu, wsl="yes"),
    "CUDA_INJECTION64_PATH is set": lambda cpu: gpu(
        cpu, Recorded(environment={"CUDA_INJECTION64_PATH": "/opt/libToolsInjection64.so"})
    ),
    "NSYS_PROFILING_SESSION_ID is set": lambda cpu: gpu(
        cpu, Recorded(environment={"NSYS_PROFILING_SESSION_ID": "42"})
    ),
    "CUDA_MPS_PIPE_DIRECTORY is set": lambda cpu: gpu(
        cpu, Recorded(environment={"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"})
    ),
    "control daemon is running": lambda cpu: gpu(
        cpu, Recorded(files={"/proc/1/comm": "systemd\n", "/proc/77/comm": "nvidia-cuda-mps\n"})
    ),
}


@pytest.mark.parametrize("reason", STALLS)
def test_where_a_gate_may_stall_another_named_timer_is_used_and_said_so(
    reason: str, cpu: Selected
) -> None:
    selected = STALLS[reason](cpu)
    assert reason in (stalls_gate(selected) or "")
    assert usual_timer(selected) == "events-ungated"
    (warning,) = timer_warnings("events-ungated", selected)
    assert reason in warning


def test_what_is_asked_for_is_kept_where_a_gate_may_stall(cpu: Selected) -> None:
    selected = STALLS["WSL"](cpu)
    assert choose_timer("events", selected, {"cold"}) == "events"
    (warning,) = timer_warnings("events", selected)
    assert "may stall" in warning


@pytest.mark.parametrize(
    "machine",
    [
        Recorded(),
        Recorded(environment={"CUDA_INJECTION64_PATH": ""}),
        Recorded(files={"/proc/1/comm": "systemd\n", "/proc/2/comm": "nvidia-persiste\n"}),
    ],
)
def test_nothing_stalls_a_gate(machine: Recorded, cpu: Selected) -> None:
    assert stalls_gate(gpu(cpu, machine)) is None


@pytest.mark.parametrize(
    ("timer", "caches", "message"),
    [
        ("event", {"cold"}, "valid: events, events-ungated, graph, cupti"),
        ("wall", {"cold"}, "no timer 'wall' on this device"),
        ("graph", {"cold", "steady"}, "needs --cache steady"),
    ],
)
def test_a_timer_that_a_gpu_has_not(
    timer: str, caches: set[str], message: str, cpu: Selected
) -> None:
    with pytest.raises(UnknownName, match=message):
        choose_timer(timer, gpu(cpu), caches)
    assert choose_timer("graph", gpu(cpu), {"steady"}) == "graph"


@pytest.mark.parametrize("timer", ["cupti", "events", "events-ungated", "graph"])
def test_a_cpu_has_the_wall_clock_alone(timer: str, cpu: Selected) -> None:
    with pytest.raises(UnknownName, match="valid: wall"):
        choose_timer(timer, cpu, {"steady"})


def test_cupti_that_cannot_be_had_is_an_error_and_no_fallback(
    cpu: Selected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupti, "unavailable", lambda: None)
    assert choose_timer("cupti", gpu(cpu), {"cold"}) == "cupti"
    monkeypatch.setattr(cupti, "unavailable", lambda: "it needs cupti-python")
    with pytest.raises(TimerUnavailable, match="--timer cupti cannot be used: it needs") as raised:
        choose_timer("cupti", gpu(cpu), {"cold"})
    assert raised.value.exit_code == 4


def test_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES\nmore")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(cupti, "CuptiSource", refused)
    assert cupti.unavailable() == "CUPTI refuses: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'membound[cupti]'" in (cupti.unavailable() or "")


def test_nothing_is_measured_where_the_timer_is_refused(
    tmp_path: Path, cpu: Selected, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise TimerUnavailable("not here")

    monkeypatch.setattr("membound.bench.run.choose_timer", refuses)
    request = Request(selection=Selection("quick", ("copy",)), device="cpu", out=tmp_path)
    with pytest.raises(TimerUnavailable):
        measure(request, Watcher())
    assert not list(tmp_path.iterdir())


# --- persisting lines ---


class Driver:
    """cuda.bindings.driver, as far as it is asked; calls answer with what `answers` holds."""

    class CUresult:
        CUDA_SUCCESS = 0

        def __init__(self, status: int) -> None:
            self.name = f"CUDA_ERROR_{status}"

    class CUlimit:
        CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6

    def __init__(self, limit: int | Exception = 0, reset: int | Exception = 0) -> None:
        self.answers = {"limit": limit, "reset": reset}
        self.calls: list[tuple[object, ...]] = []

    def _answer(self, name: str, *arguments: object) -> tuple[int]:
        self.calls.append((name, *arguments))
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return (answer,)

    def cuCtxSetLimit(self, limit: int, value: int) -> tuple[int]:  # noqa: N802
        return self._answer("limit", limit, value)

    def cuCtxResetPersistingL2Cache(self) -> tuple[int]:  # noqa: N802
        return self._answer("reset")


def test_no_line_persists() -> None:
    driver = Driver()
    assert reset_persisting_lines(driver) == {}
    assert driver.calls == [("limit", 6, 0), ("reset",)]


@pytest.mark.parametrize("refusal", [801, RuntimeError("CUDA_ERROR_801")])
def test_what_is_not_supported_is_a_reason_and_does_not_keep_the_other(
    refusal: int | Exception,
) -> None:
    limited = Driver(limit=refusal)
    (reason,) = reset_persisting_lines(limited).items()
    assert reason == ("cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0)", "CUDA_ERROR_801")
    assert ("reset",) in limited.calls
    (reason,) = reset_persisting_lines(Driver(reset=refusal)).items()
    assert reason == ("cuCtxResetPersistingL2Cache", "CUDA_ERROR_801")
