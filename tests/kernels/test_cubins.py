"""Every CUDA C++ implementation as machine code: no spills, wide accesses, launches that fit.

MEMBOUND_AUDIT=all checks every architecture instead of the three that users have most.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy
import pytest
import torch
from membound.kernels.audit.exemptions import EXEMPTIONS, exempted
from membound.kernels.audit.machine import Machine, disassemble
from membound.kernels.audit.occupancy import does_not_fit
from membound.kernels.backends.cuda import Geometry
from membound.kernels.backends.cuda_nvrtc import CompiledKernel, CompileOnly, Recorded
from membound.kernels.backends.cuda_ptx import compile_ptx
from membound.kernels.discovery import discover
from membound.kernels.target import ARCHITECTURES, reference_target
from membound.tests.emulator.cases import Case, cases
from membound.tests.emulator.toolchain import Libraries, Planner

UNSOUND = Path(__file__).with_name("unsound.cu")
EVERY = os.environ.get("MEMBOUND_AUDIT") == "all"
AUDITED = ARCHITECTURES if EVERY else ("sm_75", "sm_90", "sm_121")
KINDS = {"scaled", "layer", "ragged"} if EVERY else {"scaled", "ragged"}
WIDE = 16
CATALOGUE = discover()


def audited(arch: str) -> Iterator[Case]:
    found = cases(CATALOGUE, reference_target(arch), reduced=False)
    return (case for case in found if case.kind in KINDS and not case.spec.variant)


@cache
def together(arch: str) -> dict[Path, tuple[str, ...]]:
    """Kernels that the cases ask for, by source: one compilation each."""
    planned = Libraries()
    for case in audited(arch):
        case.on(Planner(planned))
    return {source: tuple(sorted(names)) for (source, _), names in planned.planned.items()}


@cache
def machines(code: bytes) -> dict[str, Machine]:
    return disassemble(code)


def machine(kernel: CompiledKernel) -> Machine:
    return machines(kernel.compiled.code)[kernel.symbol]


def launches(case: Case, toolchain: CompileOnly) -> list[Recorded]:
    """What the case would launch, at its real size: tensors without memory stand for its own."""
    prepared = case.on(toolchain)
    operands = (*case.spec.io.operands.values(), *prepared.scratch)
    prepared.bind(
        {t.name: torch.empty(t.shape, dtype=t.dtype.torch_dtype, device="meta") for t in operands},
        None,
    )()
    return toolchain.launches


def unsound(code: Machine) -> str | None:
    """Why this machine code is not for a memory-bound kernel, or None."""
    if code.local_accesses or code.local or code.stack:
        return f"{code.local_accesses} accesses to local memory, stack of {code.stack} bytes"
    if code.doubles:
        return f"float64 arithmetic: {code.doubles[0]}"
    return None


@pytest.mark.parametrize("arch", AUDITED)
def test_machine_code_is_sound(arch: str) -> None:
    faults, seen = [], 0
    for case in audited(arch):
        toolchain = CompileOnly(together(arch))
        recorded = launches(case, toolchain)
        assert recorded, f"{case.name} launches nothing"
        for one in recorded:
            code = machine(one.kernel)
            fault = unsound(code) or does_not_fit(code, one.geometry, case.spec.target)
            faults += [f"{case.name}: {one.kernel.name}: {fault}"] if fault else []
            seen += 1
    assert seen
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("arch", AUDITED)
def test_aligned_rows_move_in_16_bytes_or_more(arch: str) -> None:
    faults = []
    for case in audited(arch):
        if case.kind == "ragged":
            continue
        io = case.spec.io
        codes = [machine(one.kernel) for one in launches(case, CompileOnly(together(arch)))]
        for kind, needed in (("LDG", io.bytes_read), ("STG", io.bytes_written)):
            audit = "load_width" if kind == "LDG" else "store_width"
            spec = case.spec
            row = (spec.operation.name, spec.direction, audit, spec.dtype.name, arch)
            if not needed or exempted(EXEMPTIONS, *row):
                continue
            widest = max(width for code in codes for width in code.access(kind))
            faults += [f"{case.name}: {kind} of {widest} bytes"] if widest < WIDE else []
    assert not faults, "\n".join(faults)


def compiled(name: str, arch: str = "sm_90") -> Machine:
    (kernel,) = CompileOnly().build(UNSOUND, [name], reference_target(arch))
    assert isinstance(kernel, CompiledKernel)
    return machine(kernel)


def test_sound_code_passes() -> None:
    code = compiled("sound")
    assert unsound(code) is None
    assert code.access("LDG") == code.access("STG") == [16]


def test_narrow_accesses_are_seen() -> None:
    code = compiled("narrow")
    assert code.access("LDG") == code.access("STG") == [4]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("in_double", "float64 arithmetic"),
        ("in_local_memory", "local memory"),
        ("spilling", "local memory"),
    ],
)
@pytest.mark.parametrize("arch", AUDITED)
def test_unsound_code_is_rejected(name: str, message: str, arch: str) -> None:
    assert message in (unsound(compiled(name, arch)) or "")


def test_launches_that_do_not_fit_are_rejected() -> None:
    greedy, target = compiled("greedy"), reference_target("sm_90")
    assert does_not_fit(greedy, Geometry(1, 256), target) is None
    full = does_not_fit(greedy, Geometry(1, 256, shared_bytes=190 * 1024), target)
    assert "shared memory" in (full or "")
    assert does_not_fit(greedy, Geometry(1, 2048), target)
    assert does_not_fit(greedy, Geometry(2**31, 256), target)
    many = Machine(registers=128, stack=0, local=0, shared=0, instructions=(), labels={})
    assert "registers" in (does_not_fit(many, Geometry(1, 1024), target) or "")
    assert does_not_fit(many, Geometry(1, 512), target) is None


def test_ptx_is_there_for_emulators_and_readers() -> None:
    ptx, symbols = compile_ptx(UNSOUND, ["sound", "narrow"], "sm_90")
    assert ".target sm_90" in ptx
    for symbol in symbols.values():
        assert f".entry {symbol}" in ptx
    assert "ld.global.nc.L1::no_allocate.v4" in ptx


def test_a_recorded_launch_takes_what_a_launch_takes() -> None:
    toolchain = CompileOnly()
    (kernel,) = toolchain.build(UNSOUND, ["sound"], reference_target("sm_90"))
    y, x = torch.empty(8), torch.empty(8)
    kernel.bind(None, Geometry(1, 32), (y, x, numpy.int64(8)))()
    assert [one.geometry for one in toolchain.launches] == [Geometry(1, 32)]
    with pytest.raises(ValueError, match="not float"):
        kernel.bind(None, Geometry(1, 32), (y, x, 8.0))  # type: ignore[arg-type]
