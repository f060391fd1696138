"""A device to test on, and whether an implementation is right there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from membound.bench.arena import Arena
from membound.bench.verify import verify
from membound.kernels.discovery import Implementation
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.operation import DIRECTIONS, Operation
from membound.kernels.spec import CannotPrepare, Spec
from membound.kernels.target import Target

_FIRST = 5  # length of the extents that fill memory


def longest(extent: int) -> int:
    """Of every other extent; what no vector divides stays so."""
    return 1024 + extent % 2


@dataclass(frozen=True)
class Lab:
    """Where kernels run: the stream is None on the CPU."""

    target: Target
    device: torch.device
    arena: Arena
    stream: Any
    synchronize: Callable[[], None]

    def wrong(self, implementation: Implementation, spec: Spec) -> str | None:
        """Why it is wrong or cannot run; None where its outputs are verified."""
        mark = self.arena.mark()
        try:
            return self._verified(implementation, spec)
        except CannotPrepare as error:
            return f"cannot be prepared: {error}"
        finally:
            self.arena.release(mark)

    def _verified(self, implementation: Implementation, spec: Spec) -> str | None:
        inputs = make_inputs(
            spec.operation, spec.direction, spec.dims, spec.dtype, seed=5, device=self.device
        )
        exact = evaluate(spec.io, inputs, self.device)
        pristine = {t.name: self.arena.take(t).copy_(inputs[t.name]) for t in spec.io.reads}
        prepared = implementation.prepare(spec)
        tensors = self.arena.take_all([*spec.io.operands.values(), *prepared.scratch])
        for name, value in pristine.items():
            tensors[name].copy_(value)
        launch = prepared.bind(tensors, self.stream)
        judged = verify(
            spec.io, launch, tensors, pristine, exact, self.synchronize, self.arena.take, prepared
        )
        return judged.reason


def small_specs(operation: Operation, target: Target, *, few: bool) -> Iterator[tuple[str, Spec]]:
    """(case, spec) of every direction and dtype, each at one of the shapes, shrunk in turn; with
    `few`, of every direction alone."""
    dtypes = operation.dtypes[:1] if few else operation.dtypes
    for index, dtype in enumerate(dtypes):
        shape = operation.shapes[index % len(operation.shapes)]
        dims = {
            name: _FIRST
            if name in (shape.grow, operation.dims[0])
            else min(extent, longest(extent))
            for name, extent in shape.dims.items()
        }
        directions = operation.directions(dims, dtype)
        for direction in DIRECTIONS:
            io = directions.get(direction)
            if io is not None:
                extents = "x".join(map(str, dims.values()))
                case = f"{operation.name}/{direction}/{dtype}/{extents}"
                yield case, Spec(operation, direction, dims, dtype, io, target)


def faults(lab: Lab, implementations: list[Implementation], *, few: bool) -> dict[str, str]:
    """Case to reason, of every case that these implementations accept and get wrong."""
    found = {}
    for implementation in implementations:
        for case, spec in small_specs(implementation.operation, lab.target, few=few):
            if implementation.refuses(spec.direction, spec.dtype.name):
                continue
            reason = lab.wrong(implementation, replace(spec, variant=implementation.variant))
            if reason is not None:
                found[f"{case}/{implementation.label}"] = reason
    return found
