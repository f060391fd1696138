"""Machines that nobody here owns, answering anything: described, never a crash, never a guess."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from membound.bench import doctor
from membound.bench.device.identity import device_folder
from membound.bench.device.select import NoSuchDevice, Selected, select, snapshot
from membound.bench.device.sheet import named, read_sheet
from membound.bench.finding import Line
from membound.results.checked import decode, printable
from membound.results.record import Environment
from membound.tests.generated import environment
from rich.console import Console

FUTURE: dict[str, Any] = {
    "name": "NVIDIA R9000 Rubin Ultra",
    "COMPUTE_CAPABILITY_MAJOR": 14,
    "COMPUTE_CAPABILITY_MINOR": 2,
    "total_memory": 1 << 40,
    "INTEGRATED": 0,
    "MEMORY_CLOCK_RATE": 6_000_000,
    "GLOBAL_MEMORY_BUS_WIDTH": 16384,
    "MULTIPROCESSOR_COUNT": 512,
}

# what is answered instead: (chosen GB/s, words of the reason where there is none)
CHANGES: dict[str, tuple[dict[str, Any], float | None, str]] = {
    "as it is": ({}, 24576.0, ""),
    "clock 0": ({"MEMORY_CLOCK_RATE": 0}, None, "does not tell memory clock"),
    "clock N/A": ({"MEMORY_CLOCK_RATE": "[N/A]"}, None, "does not tell memory clock"),
    "bus ERR!": ({"GLOBAL_MEMORY_BUS_WIDTH": "ERR!"}, None, "does not tell memory clock"),
    "bus null": ({"GLOBAL_MEMORY_BUS_WIDTH": None}, None, "does not tell memory clock"),
    "clock in Hz": ({"MEMORY_CLOCK_RATE": 6_000_000_000}, None, "no memory's bandwidth"),
    "a few bits": ({"GLOBAL_MEMORY_BUS_WIDTH": 1, "MEMORY_CLOCK_RATE": 9}, None, "no memory's"),
    "endless clock": ({"MEMORY_CLOCK_RATE": 2**63}, None, "does not tell memory clock"),
    "integrated": ({"INTEGRATED": 1}, None, "integrated device's clock"),
    "unknown kind": ({"INTEGRATED": "Not Supported"}, None, "shares the host's memory is unknown"),
    "a slice": ({"name": "NVIDIA R9000 MIG 1g.90gb"}, None, "slice's or the whole card's"),
    "no name": ({"name": "ERR!"}, 24576.0, ""),
    "no memory": ({"total_memory": None}, 24576.0, ""),
    "an escape": ({"name": "NVIDIA \x1b[31mR9000\x07\u202e"}, 24576.0, ""),
    "an endless name": ({"name": "R" * 5000}, 24576.0, ""),
    "a path": ({"name": "../../../etc/passwd"}, 24576.0, ""),
}


@pytest.mark.parametrize("key", CHANGES)
def test_a_machine_of_the_future(key: str, bare: type) -> None:
    changes, gbps, reason = CHANGES[key]
    selected = select("cuda", machine=bare(gpus=[FUTURE | changes]))
    assert (selected.peak and selected.peak.gbps) == gbps
    assert reason in (selected.peak_reason or "")
    assert gbps or "--peak GBPS" in (selected.peak_reason or "")
    sound(selected)


def sound(selected: Selected) -> None:
    """It fits a record and the screen, and its folder is one name below results/."""
    device = selected.device
    kept = environment(
        device=device,
        peak=selected.peak,
        peak_reason=selected.peak_reason,
        peak_candidates=selected.peak_candidates,
        quirks=selected.quirks,
        warnings=selected.warnings,
        missing=selected.missing,
        memory_budget_bytes=selected.memory_budget_bytes,
        host=selected.host,
        before=snapshot(selected),
    )
    assert decode(msgspec.json.encode(kept), Environment).value == kept
    folder = device_folder(device)
    assert Path(folder).name == folder and folder.isascii() and not folder.startswith(".")
    for text in (device.name, *selected.missing.values(), *selected.warnings, *selected.quirks):
        assert text == printable(text)
    assert selected.memory_budget_bytes >= 0 and device.llc_bytes > 0


ODD: tuple[object, ...] = (
    None, 0, -1, 1, 2, 7, 2**31, 2**32 - 1, 2**60, 2**64 - 1, 2**80, True, False, 0.5, float("nan"),
    float("inf"), 1e30, "", "N/A", "[N/A]", "Not Supported", "ERR!", "[Unknown Error]", "12",
    "\x1b[2J",
    "NVIDIA GB10", "Orin", "NVIDIA GeForce RTX 3080", "NVIDIA H200 MIG 1g.18gb", "GRID T4-8Q",
    b"\xff\0",
    b"NVIDIA L4", [], [1, "x"], {"error": "\x1b]0;x\x07"}, {"error": ""}, "9" * 5000, object(),
)  # fmt: skip


def test_any_answers_at_all(bare: type) -> None:
    """Every question answered from ODD: what is believed follows from what was said."""
    machines = json.loads(Path(__file__).with_name("answers").joinpath("machines.json").read_text())
    keys = sorted(machines)
    rows, draw = read_sheet(), random.Random(20)
    described = 0
    for _ in range(400):
        answers = machines[draw.choice(keys)]
        gpu = {"uuid": "ab" * 16, "pci_bus_id": "0000:01:00.0", **answers["cuda"]}
        nvml = answers["nvml"] if isinstance(answers["nvml"], dict) else {}
        gpu |= {query: draw.choice(ODD) for query in draw.sample(sorted(gpu), draw.randrange(5))}
        nvml = nvml | {
            query: draw.choice(ODD) for query in ("uuid", *sorted(nvml)) if draw.random() < 0.4
        }
        machine = bare(gpus=[gpu], nvml_answers=nvml)
        try:
            selected = select("cuda", machine=machine)
        except NoSuchDevice as error:
            assert str(error) == printable(str(error))
            continue
        sound(selected)
        described += 1
        if selected.peak is not None and selected.peak.source == "attributes":
            kin = named(rows, selected.device.name.split(" MIG ")[0])
            assert selected.device.integrated is False or kin
            assert not any(row.unified == "yes" for row in kin)
        if selected.peak is not None and selected.peak.source == "sheet":
            assert selected.peak.gbps in {
                row.peak_gbps for row in named(rows, selected.device.name)
            }
    assert described > 200


def test_doctor_prints_a_hostile_machine_harmlessly(
    bare: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "[bold]\x1b]0;owned\x07[/x]"
    selected = select("cuda", machine=bare(gpus=[FUTURE | {"name": name}]))
    screen = io.StringIO()
    monkeypatch.setattr(doctor, "Console", lambda **_: Console(file=screen, soft_wrap=True))
    doctor.show(doctor.Diagnosis(selected, [Line("ok", "device", selected.device.name)]))
    assert "\x1b" not in screen.getvalue() and "\x07" not in screen.getvalue()
    assert "[bold]" in screen.getvalue() and "[/x]" in screen.getvalue()
