"""What the audits read off machine code, and that each of them rejects what it is there for."""

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
from membound.kernels.audit.exemptions import Exemption
from membound.kernels.audit.judge import MOST_ISSUE, issue_share, needed_in_flight
from membound.kernels.audit.machine import Machine, parse
from membound.kernels.audit.main_path import Way, busiest, main_path
from membound.kernels.audit.occupancy import does_not_fit, occupancy, resident_blocks
from membound.kernels.audit.run import Audited, Row, audit
from membound.kernels.audit.traffic import Cost, bytes_in_flight, cost
from membound.kernels.backends.cuda import Geometry
from membound.kernels.discovery import discover
from membound.kernels.target import PARTS, reference_target
from typer.testing import CliRunner, Result

UNSOUND = Path(__file__).parent / "unsound"
SHEET = Path(membound.__path__[0]) / "bench" / "device" / "gpus.csv"
H200 = next(part for part in PARTS if part.name.startswith("H200"))
LIMITS = Machine(registers=32, stack=0, local=0, shared=0, instructions=(), labels={})


def code(text: str) -> Machine:
    """Machine code of lines such as `@P0 BRA .L_x_1`; a line that ends in a colon is a label."""
    lines = []
    for line in filter(None, map(str.strip, text.splitlines())):
        guard, _, rest = line.rpartition("@")[2].partition(" ") if "@" in line else ("", "", line)
        opcode, _, operands = rest.partition(" ")
        operands = operands.replace(".L_x_", "`(.L_x_") + (")" if ".L_x_" in operands else "")
        guard = f"@{guard} " if guard else ""
        lines.append(line if line.endswith(":") else f"\t/*0000*/  {guard}{opcode} {operands} ;")
    instructions, labels = parse("\n".join(lines))
    return replace(LIMITS, instructions=instructions, labels=labels)


def parts(text: str) -> list[Way]:
    return busiest(main_path(code(text)))


STRAIGHT = """
    LDG.E.128 R4, desc[UR4][R2.64]
    FADD R4, R4, 1
    STG.E.128 desc[UR4][R8.64], R4
    EXIT
"""
"""A kernel of one vector: 4 instructions for 32 bytes."""


def test_a_straight_kernel_is_counted_whole() -> None:
    (only,) = parts(STRAIGHT)
    assert (len(only.instructions), only.bytes_loaded, only.bytes_stored) == (4, 16, 16)
    assert cost([only], 0, 0) == Cost(4 / 32, 0)


LOOP = """
    MOV R1, R2
    MOV R2, R3
    .L_x_0:
    LDG.E.128 R4, desc[UR4][R2.64]
    MUFU.EX2 R4, R4
    STG.E.128 desc[UR4][R8.64], R4
    @P0 BRA .L_x_0
    STG.E desc[UR4][R8.64], R4
    EXIT
"""


def test_only_the_loop_that_moves_the_bytes_is_counted() -> None:
    (loop,) = parts(LOOP)
    assert [one.name for one in loop.instructions] == ["LDG", "MUFU", "STG", "BRA"]
    assert cost([loop], 0, 0) == Cost(4 / 32, 1 / 32)


def test_a_call_of_a_label_is_a_branch() -> None:
    (loop,) = parts("""
        .L_x_0:
        LDG.E.128 R4, desc[UR4][R2.64]
        FADD R4, R4, 1
        @P0 CALL.REL.NOINC .L_x_1
        BRA .L_x_0
        .L_x_1:
        EXIT
    """)
    assert [one.name for one in loop.instructions] == ["LDG", "FADD", "CALL", "BRA"]


def test_a_tail_by_elements_is_left_out() -> None:
    (only,) = parts("""
        @P1 BRA .L_x_1
        LDG.E.128 R4, desc[UR4][R2.64]
        STG.E.128 desc[UR4][R8.64], R4
        @!P2 EXIT
        .L_x_1:
        .L_x_0:
        LDG.E R4, desc[UR4][R2.64]
        STG.E desc[UR4][R8.64], R4
        @P0 BRA .L_x_0
        EXIT
    """)
    assert [one.width for one in only.instructions if one.name == "LDG"] == [16]


TWO_WAYS = """
    LDG.E.128 R4, desc[UR4][R2.64]
    @P0 BRA .L_x_0
    {one}
    BRA .L_x_1
    .L_x_0:
    {other}
    .L_x_1:
    STG.E.128 desc[UR4][R8.64], R4
    EXIT
"""


@pytest.mark.parametrize(
    ("one", "other", "taken"),
    [
        ("CALL.REL.NOINC R6", "FADD R4, R4, 1\nFADD R4, R4, 1", "FADD"),  # a division's slow way
        ("MUFU.EX2 R4, R4\nFADD R4, R4, 1", "FADD R4, R4, 1", "MUFU"),  # a warp may take both
        ("LDG.E R4, desc[UR4][R2.64]\nFMUL R4, R4, 1", "FADD R4, R4, 1", "FADD"),  # a tail
    ],
)
def test_which_of_two_ways_is_taken(one: str, other: str, taken: str) -> None:
    for first, second in ((one, other), (other, one)):
        (only,) = parts(TWO_WAYS.format(one=first, other=second))
        assert taken in [step.name for step in only.instructions]


def test_what_is_kept_in_the_cache_is_no_traffic() -> None:
    (only,) = parts("""
        LDG.E.128.CONSTANT R12, desc[UR4][R2.64]
        LDG.E.NA.128.CONSTANT R4, desc[UR4][R2.64]
        FADD R4, R4, R12
        STG.E.EF.128 desc[UR4][R8.64], R4
        STG.E.128 desc[UR4][R8.64], R4
        EXIT
    """)
    assert (only.bytes_loaded, only.bytes_stored) == (16, 16)


def test_rows_of_a_table_are_traffic_beside_a_streamed_index() -> None:
    (only,) = parts("""
        LDG.E.NA.CONSTANT R2, desc[UR4][R2.64]
        LDG.E.128 R4, desc[UR4][R2.64]
        STG.E.EF.128 desc[UR4][R8.64], R4
        EXIT
    """)
    assert only.bytes_loaded == 4 + 16


LOAD_LOOP_AND_STORE_LOOP = """
    .L_x_0:
    LDG.E.128 R4, desc[UR4][R2.64]
    STS.128 [R5], R4
    @P0 BRA .L_x_0
    .L_x_1:
    LDS R4, [R5]
    STG.E desc[UR4][R8.64], R4
    @P0 BRA .L_x_1
    EXIT
"""


def test_loops_that_only_load_or_only_store_turn_as_often_as_their_bytes_need() -> None:
    found = parts(LOAD_LOOP_AND_STORE_LOOP)
    assert [(one.bytes_loaded, one.bytes_stored) for one in found] == [(16, 0), (0, 4)]
    reads, writes = 1600, 400  # a hundred turns of each
    assert cost(found, reads, writes) == Cost(600 / 2000, 0)
    assert cost(found, reads, 0) == Cost(3 / 16, 0)  # the store is of scratch


def test_a_store_that_few_threads_make_is_worth_what_the_operands_say() -> None:
    found = parts(STRAIGHT.replace("EXIT", "@P0 STG.E desc[UR4][R8.64], R4\nEXIT"))
    spent = cost(found, 10**6, 10**6)
    assert spent is not None
    assert spent.instructions == 5 / 32


INDEPENDENT = """
    LDG.E.128 R4, desc[UR4][R2.64]
    LDG.E.128 R8, desc[UR4][R2.64]
    FADD R6, R6, 1
    LDG.E.128 R12, desc[UR4][R2.64]
    FADD R8, R8, 1
    STG.E.128 desc[UR4][R20.64], R12
    EXIT
"""


def test_loads_are_in_flight_until_one_of_their_registers_is_named() -> None:
    assert bytes_in_flight(parts(INDEPENDENT)) == 32
    assert bytes_in_flight(parts(INDEPENDENT.replace("FADD R6, R6", "FADD R20, R20"))) == 48


def test_loops_in_turn_count_by_the_time_they_take() -> None:
    narrow = LOAD_LOOP_AND_STORE_LOOP.replace("LDS R4, [R5]", "LDG.E.64 R4, desc[UR4][R2.64]")
    assert bytes_in_flight(parts(narrow)) == (16 + 8) / (16 / 16 + 8 / 8) == 12


def test_the_width_of_a_store_says_which_registers_it_waits_for() -> None:
    text = """
        LDG.E.128 R4, desc[UR4][R2.64]
        STG.E.128 desc[UR4][R20.64], R4
        LDG.E.128 R8, desc[UR4][R2.64]
        STG.E.128 desc[UR4][R20.64], R8
        EXIT
    """
    assert bytes_in_flight(parts(text)) == 16


def test_vectors_of_32_bytes_are_in_two_runs_of_registers() -> None:
    load = code("LDG.E.NA.ENL2.256.CONSTANT R12, R4, desc[UR8][R24.64]").instructions[0]
    assert (load.width, load.loaded) == (32, frozenset({4, 5, 6, 7, 12, 13, 14, 15}))
    store = code("STG.E.EF.ENL2.256 desc[UR8][R32.64], R24, R40").instructions[0]
    assert store.registers == frozenset({32, *range(24, 28), *range(40, 44)})


def test_a_load_of_the_next_turn_is_in_flight_during_this_one() -> None:
    found = parts("""
        LDG.E.128 R4, desc[UR4][R2.64]
        .L_x_0:
        MOV R12, R4
        LDG.E.128 R4, desc[UR4][R2.64]
        LDG.E.128 R8, desc[UR4][R2.64]
        STG.E.128 desc[UR4][R20.64], R8
        @P0 BRA .L_x_0
        EXIT
    """)
    assert bytes_in_flight(found) == 32


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
    ],
)
def test_an_exemption_covers_what_it_names_only(other: dict[str, str]) -> None:
    fits = Exemption("labor*", "forward", "issue", "a test", "float32", "sm_90", "scaled")
    assert row("laborious", judged("sm_90", (fits,))).status == "issue-bound"
    missing = replace(fits, **other)  # type: ignore[arg-type]
    assert row("laborious", judged("sm_90", (missing,))).status == "fault"


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
