"""What is audited: every `cuda` implementation that discovery finds, at the shapes layers have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backends.cuda import Geometry, Kernel
from ..backends.cuda_nvrtc import CompileOnly, Recorded
from ..discovery import Catalogue, Implementation
from ..operation import DIRECTIONS, Operation
from ..shapes import text
from ..spec import Prepared, Spec
from ..target import Target

if TYPE_CHECKING:
    import numpy
    import torch

_REAL = frozenset({"scaled", "layer", "ragged"})
"""Kinds of shapes that layers have; the others are for correctness alone."""


@dataclass(frozen=True)
class Case:
    """One implementation of one direction, at one dtype and shape (of this kind)."""

    implementation: Implementation
    spec: Spec
    kind: str

    @property
    def name(self) -> str:
        spec = self.spec
        return (
            f"{spec.operation.name}/{spec.direction}/{self.implementation.label}/{spec.dtype}"
            f"/{text(spec.dims)}"
        )

    def on(self, toolchain: Any) -> Prepared:
        """Prepared with this toolchain. Raises CannotPrepare."""
        return self.implementation.prepare(replace(self.spec, toolchain=toolchain))


def cases_of(
    implementation: Implementation, shapes: Iterable[tuple[str, Mapping[str, int]]], target: Target
) -> Iterator[Case]:
    """Every direction and dtype that it does not refuse, at these (kind, dims)."""
    operation = implementation.operation
    shapes = list(shapes)
    for direction in DIRECTIONS:
        for dtype in operation.dtypes:
            if implementation.refuses(direction, dtype.name):
                continue
            for kind, dims in shapes:
                io = operation.directions(dims, dtype).get(direction)
                assert io is not None
                spec = Spec(
                    *(operation, direction, dims, dtype, io),
                    target,
                    variant=implementation.variant,
                )
                yield Case(implementation, spec, kind)


def real_cases(
    catalogue: Catalogue, operations: Iterable[Operation], target: Target
) -> Iterator[Case]:
    """At real size. Chains are left out: their steps are operations that are audited themselves."""
    for operation in operations:
        shapes = [(shape.kind, shape.dims) for shape in operation.shapes if shape.kind in _REAL]
        for implementation in catalogue.implementations(operation, ("cuda",)):
            if implementation.variant not in operation.chains:
                yield from cases_of(implementation, shapes, target)


@dataclass(frozen=True)
class Launch:
    """One launch of a case. reads, writes: bytes that move of the operands it is given."""

    recorded: Recorded
    reads: int
    writes: int


def launches(case: Case, toolchain: CompileOnly) -> list[Launch]:
    """What the case launches: tensors without memory stand for its own. Raises CannotPrepare."""
    import torch

    toolchain.launches.clear()
    prepared = case.on(toolchain)
    io = case.spec.io
    tensors = {
        t.name: torch.empty(t.shape, dtype=t.dtype.torch_dtype, device="meta")
        for t in (*io.operands.values(), *prepared.scratch)
    }
    prepared.bind(tensors, None)()
    moved = [{t.name: t.traffic for t in tensors} for tensors in (io.reads, io.outputs)]
    return [
        Launch(one, *(_bytes_given(one, tensors, names) for names in moved))
        for one in toolchain.launches
    ]


def _bytes_given(
    one: Recorded, tensors: Mapping[str, torch.Tensor], moved: Mapping[str, int]
) -> int:
    given = {id(_whole(argument)) for argument in one.arguments}
    return sum(moved[name] for name in moved if id(tensors[name]) in given)


def _whole(argument: torch.Tensor | numpy.generic) -> object:
    """The tensor that a view is of."""
    base = getattr(argument, "_base", None)
    return argument if base is None else base


def planned(cases: Iterable[Case]) -> dict[Path, tuple[str, ...]]:
    """Kernels that cases ask for, by source: one compilation each. Raises CannotPrepare."""
    planner = _Planner()
    for case in cases:
        case.on(planner)
    return {source: tuple(sorted(names)) for source, names in planner.names.items()}


@dataclass
class _Planner:
    """A toolchain that builds nothing: it learns which kernels will be asked for."""

    names: dict[Path, set[str]] = field(default_factory=dict)

    def build(
        self,
        source: Path,
        names: Sequence[str],
        target: Target,
        defines: Mapping[str, str] | None = None,
    ) -> list[Kernel]:
        self.names.setdefault(source, set()).update(names)
        return [_Planned(name) for name in names]


@dataclass(frozen=True)
class _Planned:
    name: str
    attributes: Mapping[str, int] = field(default_factory=dict)

    def bind(self, stream: Any, geometry: Geometry, arguments: Any) -> Any:
        raise AssertionError("a planned kernel is not launched")
