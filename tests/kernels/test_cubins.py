"""Every CUDA C++ implementation as machine code.

MEMBOUND_AUDIT=all audits every architecture, dtype and shape instead of what `wanted` says.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy
import pytest
import torch
from membound.kernels.audit.cases import Case, real_cases
from membound.kernels.audit.exemptions import EXEMPTIONS, Exemption
from membound.kernels.audit.judge import fault
from membound.kernels.audit.run import Audited, audit
from membound.kernels.backends.cuda import Geometry
from membound.kernels.backends.cuda_nvrtc import CompileOnly
from membound.kernels.backends.cuda_ptx import compile_ptx
from membound.kernels.discovery import discover
from membound.kernels.target import ARCHITECTURES, reference_target

UNSOUND = Path(__file__).parent / "unsound" / "unsound.cu"
EVERY = os.environ.get("MEMBOUND_AUDIT") == "all"
AUDITED = ARCHITECTURES if EVERY else ("sm_75", "sm_90", "sm_121")
CATALOGUE = discover()


def wanted(case: Case) -> bool:
    """What CI audits: aligned rows of tier 1 in the last dtype, and where instructions count most
    those of every tier, ragged and as steps of ladders too, and tier 1 in the first dtype."""
    spec = case.spec
    if EVERY:
        return True
    first, last = (spec.dtype == spec.operation.dtypes[end] for end in (0, -1))
    most, step = spec.target.arch == "sm_90", case.implementation.is_step
    tier_1 = spec.operation.tier == 1
    if case.kind == "ragged" or step:
        return last and most and case.kind in {"scaled", "ragged"}
    return case.kind == "scaled" and ((last or (first and tier_1)) if most else last and tier_1)


def cases(arch: str) -> list[Case]:
    found = real_cases(CATALOGUE, CATALOGUE.operations.values(), reference_target(arch))
    return [case for case in found if wanted(case)]


def of(row: Exemption, case: Case) -> bool:
    """Whether the row would cover a fault of this case."""
    return row.covers(fault(case, row.audit, ""))


@cache
def audited(arch: str) -> Audited:
    return audit(CATALOGUE, CATALOGUE.operations.values(), [arch], wanted=wanted)


@pytest.mark.parametrize("arch", AUDITED)
def test_kernels_have_no_fault_that_is_not_listed(arch: str) -> None:
    found = audited(arch)
    assert found.rows
    assert not found.faults, "\n".join(
        f"{row.operation} {row.direction} {row.dtype} {row.shape} {row.kernel}: {row.reason}"
        for row in found.faults
    )


def test_every_exemption_is_needed(record_property: Callable[[str, object], None]) -> None:
    used = {row for arch in AUDITED for row in audited(arch).used}
    due = {row for arch in AUDITED for case in cases(arch) for row in EXEMPTIONS if of(row, case)}
    record_property("exemptions", len(EXEMPTIONS))
    print(f"{len(EXEMPTIONS)} exemptions, {len(due)} of them due on {', '.join(AUDITED)}")
    assert [row for row in due if row not in used] == []


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
