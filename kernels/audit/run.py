"""The audit: every kernel that operations launch at the shapes of their layers, judged."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ..backends.cuda import unavailable
from ..backends.cuda_nvrtc import CompiledKernel, CompileOnly, include_folders
from ..discovery import Catalogue
from ..operation import Operation
from ..shapes import text as shape_text
from ..spec import CannotPrepare
from ..target import Target, reference_target
from .cases import Case, launches, planned, real_cases
from .exemptions import EXEMPTIONS, Exemption, Fault, exempted
from .judge import Figures, fault, faults, figures
from .machine import Machine, MissingTool, disassemble, require_disassemblers
from .main_path import Way, busiest, main_path

Status = Literal["fault", "issue-bound", "exempt", "ok"]
FIGURES = tuple(field.name for field in fields(Figures))
_WORST_FIRST: tuple[Status, ...] = ("fault", "issue-bound", "exempt", "ok")


@dataclass(frozen=True)
class Row:
    """One kernel on one architecture, at the worst of the shapes that launch it.

    figures: None where it could not be compiled.
    """

    operation: str
    direction: str
    dtype: str
    variant: str
    arch: str
    shape: str
    kernel: str
    figures: Figures | None
    status: Status
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Flat; figures are null where there are none."""
        known = dict(vars(self))
        found = known.pop("figures")
        verdict = {name: known.pop(name) for name in ("status", "reason")}
        return known | (vars(found) if found else dict.fromkeys(FIGURES)) | verdict

    @property
    def order(self) -> tuple[int, float, float]:
        """Worst first."""
        place = _WORST_FIRST.index(self.status)
        if self.figures is None:
            return place, 0.0, 0.0
        margin = min(self.figures.in_flight_margin.values(), default=float("inf"))
        return place, margin, -max(self.figures.issue_share.values(), default=0.0)


def require_tools() -> None:
    """Raises MissingTool where the compiler, its headers or a disassembler is missing."""
    missing = unavailable()
    try:
        if not missing:
            from cuda.bindings import nvrtc

            nvrtc.nvrtcVersion()
            include_folders()
    except (ImportError, OSError, RuntimeError, CannotPrepare) as error:
        missing = str(error).partition("\n")[0]
    if missing:
        raise MissingTool(f"{missing}; install membound with the extra audit")
    require_disassemblers()


@dataclass(frozen=True)
class Audited:
    """rows: by architecture, faults first. used: exemptions that something needed."""

    rows: list[Row]
    used: frozenset[Exemption]

    @property
    def faults(self) -> list[Row]:
        return [row for row in self.rows if row.status == "fault"]


def audit(
    catalogue: Catalogue,
    operations: Iterable[Operation],
    archs: Iterable[str],
    *,
    exemptions: Sequence[Exemption] = EXEMPTIONS,
    wanted: Callable[[Case], bool] = lambda case: True,
    say: Callable[[str], None] = lambda line: None,
) -> Audited:
    """Every kernel of these operations, on every architecture ("sm_121").

    Kernels of one source are compiled at once, and what is compiled is kept. Raises MissingTool,
    and ValueError for an architecture that is not known.
    """
    require_tools()
    chosen = list(operations)
    rows: list[Row] = []
    used: set[Exemption] = set()
    for arch in archs:
        cases = [c for c in real_cases(catalogue, chosen, reference_target(arch)) if wanted(c)]
        say(f"{arch}: {len(cases)} cases")
        worst: dict[tuple[str, ...], Row] = {}
        for one in _judged(cases):
            listed = {wrong: exempted(exemptions, wrong) for wrong in one.faults}
            used |= {row for row in listed.values() if row}
            row = _row(one, listed)
            key = row.operation, row.direction, row.dtype, row.variant, row.kernel
            if key not in worst or row.order < worst[key].order:
                worst[key] = row
        rows += sorted(worst.values(), key=lambda row: row.order)
    return Audited(rows, frozenset(used))


@dataclass(frozen=True)
class _Judged:
    """One launch of a case; no kernel and no figures where there is none."""

    case: Case
    kernel: str
    figures: Figures | None
    faults: list[Fault]


def _judged(cases: Iterable[Case]) -> Iterator[_Judged]:
    ready: list[Case] = []
    for case in cases:
        try:
            planned([case])
            ready.append(case)
        except CannotPrepare as error:
            yield _Judged(case, "", None, [fault(case, "prepare", str(error))])
    machines = _Machines(ready)
    for case in ready:
        try:
            launched = launches(case, machines.toolchain)
        except CannotPrepare as error:
            yield _Judged(case, "", None, [fault(case, "prepare", str(error))])
            continue
        if not launched:
            yield _Judged(case, "", None, [fault(case, "launch", "launches nothing")])
        for one in launched:
            kernel = one.recorded.kernel
            code, parts = machines.of(kernel)
            known = figures(code, parts, one, case.spec.target)
            yield _Judged(case, kernel.name, known, faults(case, one, code, known))


class _Machines:
    """Everything that cases ask for, compiled and disassembled a source at a time, in parallel."""

    def __init__(self, cases: Sequence[Case]) -> None:
        import cuda.core  # noqa: F401 (threads must not be the first to import it)

        self.toolchain = CompileOnly(planned(cases))
        self._codes: dict[bytes, dict[str, Machine]] = {}
        self._parts: dict[tuple[bytes, str], list[Way]] = {}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for target in {case.spec.target for case in cases}:
                list(pool.map(partial(self._make, target), self.toolchain.together.items()))

    def _make(self, target: Target, planned: tuple[Path, Sequence[str]]) -> None:
        source, names = planned
        # Where it does not compile, its cases will say so one by one.
        with suppress(CannotPrepare):
            first, *_ = self.toolchain.build(source, names, target)
            assert isinstance(first, CompiledKernel)
            self._disassembled(first.compiled.code)

    def of(self, kernel: CompiledKernel) -> tuple[Machine, list[Way]]:
        """Its machine code, and the busiest parts of that."""
        code = kernel.compiled.code
        machine = self._disassembled(code)[kernel.symbol]
        key = code, kernel.symbol
        if key not in self._parts:
            self._parts[key] = busiest(main_path(machine))
        return machine, self._parts[key]

    def _disassembled(self, code: bytes) -> dict[str, Machine]:
        if code not in self._codes:
            self._codes[code] = disassemble(code)
        return self._codes[code]


def _row(judged: _Judged, listed: Mapping[Fault, Exemption | None]) -> Row:
    spec = judged.case.spec
    unlisted = [one.text for one, row in listed.items() if row is None]
    reasons = [f"{one.text}: {row.reason}" for one, row in listed.items() if row]
    status: Status = "exempt" if reasons else "ok"
    if any(one.audit == "issue" for one in listed):
        status = "issue-bound"
    return Row(
        spec.operation.name,
        spec.direction,
        spec.dtype.name,
        spec.variant,
        spec.target.arch,
        shape_text(spec.dims),
        judged.kernel,
        judged.figures,
        status="fault" if unlisted else status,
        reason="; ".join(unlisted or reasons),
    )
