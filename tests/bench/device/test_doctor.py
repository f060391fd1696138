"""What surrounds a run: every question asked by itself, with a level and a remedy."""

from __future__ import annotations

import shutil
import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from membound.bench import doctor, toolchain
from membound.bench.device.select import Selected, select
from membound.bench.finding import Line
from membound.bench.launch_probe import CTYPES, SOURCE, launch, probed
from membound.kernels.backends.cuda_nvrtc import CompileOnly, include_folders
from membound.kernels.target import reference_target

Machines = Callable[[str], Any]


@pytest.fixture
def l4(recorded: Machines) -> Selected:
    return select("cuda", machine=recorded("L4"))


def levels(lines: Any) -> dict[str, str]:
    return {line.name: line.level for line in lines}


def driver(selected: Selected, cuda: str) -> Selected:
    return replace(selected, device=msgspec.structs.replace(selected.device, cuda_driver=cuda))


def test_a_gpu_is_diagnosed_line_by_line(l4: Selected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "launched", lambda *_: dict.fromkeys(CTYPES, None))
    lines = list(toolchain.gpu_lines(l4))
    found = levels(lines)
    asked = {"driver", "runtime", "nvrtc", "headers", "launch", "torch CUDA", "nvml", "clocks"}
    assert asked | {"others"} <= set(found)
    assert {found[name] for name in ("driver", "runtime", "nvrtc", "headers", "launch")} == {"ok"}
    text = {line.name: line.text for line in lines}
    assert text["driver"].startswith("580.95.05, CUDA 13.0, at ")
    assert "libcudart.so" in text["runtime"] and "libnvrtc.so" in text["nvrtc"]
    assert sum(line.name == "launch" for line in lines) == 3
    assert all(line.remedy for line in lines if line.level != "ok")
    if torch.version.cuda is None:
        assert found["torch CUDA"] == "fail"
        assert doctor.Diagnosis(l4, lines).exit_code == 4
    assert not list(toolchain.gpu_lines(select("cpu")))


def test_an_older_driver_than_the_compiler_is_a_failure_with_a_remedy(l4: Selected) -> None:
    (line,) = toolchain.nvrtc(driver(l4, "12.4"))
    assert line.level == "fail"
    assert line.remedy == "update the driver, or install the cuda12 extra"
    assert [line.level for line in toolchain.runtime(driver(l4, "12.4"))] == ["fail"]
    assert [line.level for line in toolchain.cupy_cuda(driver(l4, "11.8"))] in ([], ["warn"])


def test_a_probe_that_fails_names_where_headers_come_from(
    l4: Selected, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "cuda_fp16.h(1): error: expected a declaration"
    monkeypatch.setattr(toolchain, "launched", lambda *_: dict.fromkeys(CTYPES, reason))
    lines = list(toolchain.launches(l4))
    assert [line.level for line in lines] == ["fail"] * 3
    assert all(str(include_folders()[1]) in str(line.remedy) for line in lines)
    assert doctor.Diagnosis(l4, lines).exit_code == 4


def test_every_line_that_is_not_ok_says_what_to_do(
    recorded: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "launched", lambda *_: dict.fromkeys(CTYPES, "refused"))
    for key in ("GB10", "container without NVML", "WSL2", "MIG bus unknown"):
        lines = list(doctor._lines(select("cuda", machine=recorded(key))))
        assert all(line.remedy for line in lines if line.level != "ok"), key
        names = {line.name for line in lines}
        assert {"device", "peak", "memory", "placements", "commit", "results"} <= names
    nothing = replace(select("cpu"), fallback_reason="CUDA sees no GPU")
    assert all(line.remedy for line in doctor._lines(nothing) if line.level != "ok")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended with status -11: it says nothing"),
        ("raise ImportError('no \\x1b[31mlibcuda')", "ImportError: no [31mlibcuda"),
        ("print('[]')", "ended with status 0"),
        ("print('{\"float32\": ')", "ended with status 0"),
        ("import time; time.sleep(60)", "gave no answer for 1 s"),
        ('print(\'{"float32":"a", "float16":"a", "bfloat16":"a"}\')', "a"),
    ],
)
def test_a_probe_that_crashes_is_a_line_and_not_the_end(script: str, said: str) -> None:
    timeout = 1.0 if "sleep" in script else 60.0
    found = toolchain.launched([sys.executable, "-c", script], reference_target("sm_89"), timeout)
    assert list(found) == list(CTYPES)
    assert all(said in str(reason) for reason in found.values()), found


class StandIn:
    """A toolchain whose kernel counts up from `first` on the host."""

    def __init__(self, first: int) -> None:
        self.first = first

    def build(self, *_: object) -> list[Any]:
        def bind(stream: object, geometry: object, arguments: list[torch.Tensor]) -> Any:
            return lambda: arguments[0].copy_(torch.arange(64) + self.first)

        return [SimpleNamespace(bind=bind)]


@pytest.mark.parametrize(
    ("first", "wrong"), [(0, None), (1, "the kernel ran and left wrong values")]
)
def test_a_wrong_result_is_no_success(first: int, wrong: str | None) -> None:
    target = reference_target("sm_89")
    found = probed(lambda dtype: launch(StandIn(first), target, "cpu", dtype))
    assert found == dict.fromkeys(CTYPES, wrong)


@pytest.mark.parametrize("arch", ["sm_75", "sm_121"])
def test_the_probe_compiles_for_every_element_type(arch: str) -> None:
    built = [
        CompileOnly().build(SOURCE, [f"count<{c}>"], reference_target(arch))
        for c in CTYPES.values()
    ]
    assert all(kernel[0].name.startswith("count<") for kernel in built)


@pytest.mark.parametrize(("knows", "level"), [("sm_80 sm_89", "ok"), ("sm_80 sm_890", "warn")])
def test_ptxas_has_to_know_the_architecture(
    l4: Selected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: str, level: str
) -> None:
    script = tmp_path / "ptxas"
    script.write_text(f"#!/bin/sh\necho {knows}\n")
    script.chmod(0o755)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(script))
    (line,) = toolchain.ptxas(l4)
    assert line.level == level
    assert level == "ok" or "TRITON_PTXAS_PATH" in str(line.remedy)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path / "absent"))
    (line,) = toolchain.guarded("ptxas", toolchain.ptxas, l4)
    assert line.level == "warn" and "No such file" in line.text


def test_headers_of_another_cuda_are_seen(tmp_path: Path) -> None:
    assert toolchain.header_version(tmp_path) is None
    (tmp_path / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  12090\n")
    assert toolchain.header_version(tmp_path) == (12, 9)


def test_what_slows_a_gpu_or_hides_it_is_warned_of(recorded: Machines) -> None:
    blind = select("cuda", machine=recorded("container without NVML"))
    found = levels([*toolchain.nvml(blind), *toolchain.clocks(blind)])
    assert found == {"nvml": "warn", "clocks": "warn"}
    assert not list(toolchain.other_processes(blind))
    machine = recorded("H200")
    machine.nvml_answers |= {
        "sm_clock_mhz": 345, "clock_event_reasons": 0x40, "compute_pids": [7], "graphics_pids": [],
    }  # fmt: skip
    slow = select("cuda", machine=machine)
    lines = [*toolchain.clocks(slow), *toolchain.other_processes(slow)]
    assert levels(lines) == {"clocks": "warn", "others": "warn"}
    assert "345 of" in lines[0].text and "thermal (hardware)" in lines[0].text
    assert "7 (not visible from here)" in lines[1].text


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(("free", "level"), [(1 << 20, "fail"), (1 << 29, "warn"), (1 << 40, "ok")])
def test_a_full_disk_is_said_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 41, 0, free))
    lines = {line.name: line for line in toolchain.host_lines(select("cpu"), tmp_path / "a" / "b")}
    assert lines["results"].level == level
    assert lines["cache"].level in ("ok", "warn")  # a run works without


def test_a_folder_that_cannot_be_made_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    lines = {
        line.name: line for line in toolchain.host_lines(select("cpu"), tmp_path / "file" / "x")
    }
    assert lines["results"] == Line(
        "fail",
        "results",
        f"{tmp_path}/file/x may not be written",
        "choose another place with --out",
    )
