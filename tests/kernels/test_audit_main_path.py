"""What the audits read off machine code: the main path, what it costs, and its bytes in flight."""

from __future__ import annotations

import pytest
from membound.kernels.audit.machine import Machine, parse
from membound.kernels.audit.main_path import Way, busiest, main_path
from membound.kernels.audit.traffic import Cost, bytes_in_flight, cost


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
    return Machine(32, stack=0, local=0, shared=0, instructions=instructions, labels=labels)


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


def test_a_wide_store_of_a_partial_sum_is_no_traffic_beside_streamed_elements() -> None:
    """As pooling of rows that are no vectors, which stores a float per plane beside its dx."""
    found = parts("""
        .L_x_0:
        LDG.E.NA.128.CONSTANT R4, desc[UR4][R2.64]
        STS.128 [R5], R4
        @P0 BRA .L_x_0
        .L_x_1:
        LDS.U16 R4, [R5]
        STG.E.EF.U16 desc[UR4][R8.64], R4
        @P0 BRA .L_x_1
        .L_x_2:
        FADD R4, R4, R5
        STG.E desc[UR4][R8.64], R4
        @P0 BRA .L_x_2
        EXIT
    """)
    assert [(one.bytes_loaded, one.bytes_stored) for one in found] == [(16, 0), (0, 2)]
    reads, writes = 1600, 200  # a hundred turns of each
    assert cost(found, reads, writes) == Cost(600 / 1800, 0)


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


def test_what_gathers_results_in_shared_memory_turns_as_often_as_they_need() -> None:
    """The last loop copies them out; scratch in shared memory before the first load is no work."""
    found = parts("""
        .L_x_3:
        STS [R5], RZ
        @P0 BRA .L_x_3
        .L_x_0:
        LDG.E.128 R4, desc[UR4][R2.64]
        STS.128 [R5], R4
        @P0 BRA .L_x_0
        .L_x_1:
        LDS.64 R4, [R5]
        FADD R4, R4, R5
        STS.U16 [R5], R4
        STS.U16 [R5+0x2], R4
        @P0 BRA .L_x_1
        .L_x_2:
        LDS.128 R4, [R5]
        STG.E.128 desc[UR4][R8.64], R4
        @P0 BRA .L_x_2
        EXIT
    """)
    assert [one.bytes_gathered for one in found] == [0, 4, 0]
    reads, writes = 1600, 320  # turns: a hundred, eighty and twenty
    assert cost(found, reads, writes) == Cost((100 * 3 + 80 * 5 + 20 * 3) / 1920, 0)


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
