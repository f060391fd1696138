"""Each audit rejects what it is there for; what people see of one."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import membound
import pytest
from membound.cli import app
from membound.kernels.audit import machine as machine_module
from membound.kernels.audit.exemptions import Exemption, read_exemptions
from membound.kernels.audit.judge import MOST_ISSUE, issue_share, needed_in_flight
from membound.kernels.audit.machine import Machine
from membound.kernels.audit.occupancy import does_not_fit, occupancy, resident_blocks
from membound.kernels.audit.run import Audited, Row, audit
from membound.kernels.audit.traffic import Cost
from membound.kernels.backends.cuda import Geometry
from membound.kernels.discovery import discover
from membound.kernels.target import PARTS, reference_target
from typer.testing import CliRunner, Result

UNSOUND = Path(__file__).parent / "unsound"
SHEET = Path(membound.__path__[0]) / "bench" / "device" / "gpus.csv"
H200 = next(part for part in PARTS if part.name.startswith("H200"))
LIMITS = Machine(registers=32, stack=0, local=0, shared=0, instructions=(), labels={})


@pytest.mark.parametrize(
    ("arch", "registers", "threads", "shared", "blocks"),
    [
        ("sm_90", 32, 256, 0, 8),  # 2048 threads
        ("sm_121", 32, 256, 0, 6),  # 1536 threads
        ("sm_75", 32, 256, 0, 4),  # 1024 threads
        ("sm_90", 40, 256, 0, 6),  # registers: 12 warps a scheduler
        ("sm_90", 64, 1024, 0, 1),
        ("sm_90", 32, 256, 100 * 1024, 2),  # shared memory: 228 KiB, 1 KiB of each block its own
        ("sm_86", 32, 32, 0, 16),  # blocks
    ],
)
def test_resident_blocks(arch: str, registers: int, threads: int, shared: int, blocks: int) -> None:
    known = replace(LIMITS, registers=registers)
    target = reference_target(arch)
    geometry = Geometry(1000, threads, shared_bytes=shared)
    assert resident_blocks(known, geometry, target) == blocks
    expected = blocks * threads / target.threads_per_multiprocessor
    assert occupancy(known, geometry, target) == expected


@pytest.mark.parametrize(
    ("geometry", "registers", "arch", "limit"),
    [
        (Geometry(1, 1024), 64, "sm_90", None),
        (Geometry(1, 1024), 128, "sm_90", "registers"),
        (Geometry(1, 2048), 32, "sm_90", "threads=2048"),
        (Geometry(2**31, 256), 32, "sm_90", "blocks=2147483648"),
        (Geometry(1, 256, shared_bytes=228 * 1024), 32, "sm_90", "shared memory"),
        (Geometry(8, 256, cluster=8), 32, "sm_90", None),
        (Geometry(8, 256, cluster=8), 32, "sm_89", "clusters of 8 on sm_89"),
        (Geometry(9, 256, cluster=8), 32, "sm_90", "9 blocks in clusters of 8"),
    ],
)
def test_limits_of_a_launch(
    geometry: Geometry, registers: int, arch: str, limit: str | None
) -> None:
    found = does_not_fit(replace(LIMITS, registers=registers), geometry, reference_target(arch))
    assert limit in found if limit and found else found == limit


def test_what_a_device_can_issue_and_must_have_in_flight() -> None:
    budget = 128 * 132 * 1.98e9 / 4.8e12  # instructions per byte at sheet bandwidth: 6.97
    assert issue_share(Cost(budget, 0), H200) == 1.0
    assert issue_share(Cost(0, budget / 8), H200) == 1.0  # a 16 lanes to 128
    assert 25e3 < needed_in_flight(H200, 1, 0) < 40e3
    assert needed_in_flight(H200, 1, 1) == needed_in_flight(H200, 1, 0) / 2


def test_parts_are_those_of_the_sheet() -> None:
    with SHEET.open(newline="") as file:
        sheet = {row["marketing_name"]: row for row in csv.DictReader(file)}
    for part in PARTS:
        row = sheet[part.name]
        assert part.arch == f"sm_{row['compute_capability'].replace('.', '')}"
        assert part.multiprocessors == int(row["sm_count"])
        assert part.bandwidth == pytest.approx(float(row["peak_bandwidth_gbps"]) * 1e9)
        lanes = 64 if part.arch in {"sm_75", "sm_80"} else 128
        rate = float(row["fp32_tflops"] or 0) * 1e12 / (2 * lanes * part.multiprocessors)
        assert part.clock == pytest.approx(rate, rel=2e-3) if rate else part.clock is None


@cache
def judged(arch: str, exemptions: tuple[Exemption, ...] = ()) -> Audited:
    catalogue = discover([UNSOUND])
    chosen = [one for one in catalogue.operations.values() if one.stem == "unsound"]
    return audit(catalogue, chosen, [arch], exemptions=exemptions)


def row(operation: str, found: Audited) -> Row:
    return next(one for one in found.rows if one.operation == operation)


EVERYWHERE = {
    "narrow": "loads of 4 bytes; stores of 4 bytes",
    "in_double": "float64 arithmetic",
    "in_local_memory": "local memory",
    "spilling": "local memory",
    "greedy": "of shared memory of",
    "crowded": "threads=2048",
}
ON_H200 = {
    "waiting": "of the loads that H200",
    "laborious": "of what H200 SXM 141GB can issue at copy speed",
    "transcendental": "of what H200 SXM 141GB can issue at copy speed",
}


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_121"])
def test_unsound_kernels_are_rejected_and_no_other(arch: str) -> None:
    expected = EVERYWHERE | (ON_H200 if arch == "sm_90" else {})
    found = judged(arch)
    assert {one.operation for one in found.faults} == set(expected)
    for name, words in expected.items():
        assert words in row(name, found).reason
    assert row("sound", found).status == "ok"


def test_figures_of_a_sound_kernel() -> None:
    figures = row("sound", judged("sm_90")).figures
    assert figures is not None
    assert (figures.load_bytes_max, figures.store_bytes_max, figures.spill_bytes) == (16, 16, 0)
    assert figures.occupancy == 1.0
    assert figures.bytes_in_flight_per_sm == 2048 * 16
    assert figures.special_per_byte == 0
    assert max(figures.issue_share.values()) < MOST_ISSUE
    assert row("spilling", judged("sm_90")).figures.spill_bytes > 0  # type: ignore[union-attr]


def test_a_listed_fault_is_exempt_and_an_idle_row_is_known() -> None:
    listed = Exemption("laborious", "forward", "issue", "a test", arch="sm_9*")
    idle = Exemption("sound", "forward", "issue", "a test")
    found = judged("sm_90", (listed, idle))
    assert row("laborious", found).status == "issue-bound"
    assert row("laborious", found).reason.endswith("can issue at copy speed: a test")
    assert found.used == {listed}


@pytest.mark.parametrize(
    "other",
    [
        {"operation": "silu"},
        {"direction": "backward"},
        {"audit": "in_flight"},
        {"dtype": "*float16"},
        {"arch": "sm_121"},
        {"kind": "layer"},
        {"variant": "naive"},
    ],
)
def test_an_exemption_covers_what_it_names_only(other: dict[str, str]) -> None:
    fits = Exemption("labor*", "forward", "issue", "a test", "float32", "sm_90", "scaled")
    assert row("laborious", judged("sm_90", (fits,))).status == "issue-bound"
    missing = replace(fits, **other)  # type: ignore[arg-type]
    assert row("laborious", judged("sm_90", (missing,))).status == "fault"


def test_a_line_of_exemptions_is_a_row_for_each_operation_and_direction(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    head = "audit,operations,directions,dtype,arch,kind,reason\n"
    path.write_text(head + 'issue,silu gelu,forward backward,*float16,sm_90,*,"a, test"\n')
    assert list(read_exemptions(path)) == [
        Exemption(operation, direction, "issue", "a, test", "*float16", "sm_90")
        for operation in ("silu", "gelu")
        for direction in ("forward", "backward")
    ]
    path.write_text(head + "isue,silu,forward,*,*,*,a test\n")
    with pytest.raises(ValueError, match=r"rows\.csv:2: no audit is called 'isue'"):
        list(read_exemptions(path))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["audit", "--kernels", str(UNSOUND), *arguments])


FIELDS = (
    *("operation", "direction", "dtype", "variant", "arch", "registers", "spill_bytes"),
    *("local_bytes", "load_bytes_max", "store_bytes_max", "occupancy", "instructions_per_byte"),
    *("bytes_in_flight_per_sm", "status", "reason"),
)


def test_json_has_an_object_for_every_kernel_and_architecture() -> None:
    ended = invoke("sound", "--arch", "sm_90,sm_121", "--json")
    assert ended.exit_code == 0
    found = json.loads(ended.stdout)
    assert [one["arch"] for one in found] == ["sm_90", "sm_121"]
    assert all(set(FIELDS) <= set(one) for one in found)
    assert all(one["status"] == "ok" for one in found)


def test_a_fault_is_shown_first_and_exits_1() -> None:
    ended = invoke("sound", "narrow", "--arch", "sm_90")
    assert ended.exit_code == 1
    assert ended.stdout.startswith(
        "fault: narrow forward float32 4096x4096 sm_90: loads of 4 bytes"
    )
    assert ended.stdout.splitlines()[-1] == "sm_90: 1 fault, 1 ok"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sound", "--arch", "sm_91"], "unknown architecture 'sm_91'; valid: all, sm_75"),
        (["soudn"], "unknown operation 'soudn'; nearest: sound"),
    ],
)
def test_a_wrong_name_is_one_line_and_exits_2(arguments: Sequence[str], words: str) -> None:
    ended = invoke(*arguments)
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_missing_tool_is_one_line_and_exits_4(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Callable[[str], None] = lambda name: None  # noqa: E731
    monkeypatch.setattr("cuda.pathfinder.find_nvidia_binary_utility", nothing)
    monkeypatch.setattr(machine_module, "find_spec", nothing)
    ended = invoke("sound", "--arch", "sm_90")
    assert ended.exit_code == 4
    assert ended.stderr == "membound: no cuobjdump here; install membound with the extra audit\n"
