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
from membound.kernels.operation import Operation
from membound.kernels.spec import CannotPrepare, Spec
from membound.kernels.target import Target
from membound.tests.kernels.gpu_cases import specs


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
            spec.io, launch, tensors, pristine, exact, self.synchronize, self.arena.take
        )
        return judged.reason


def small_specs(operation: Operation, target: Target, *, few: bool) -> Iterator[tuple[str, Spec]]:
    """One shape per direction and dtype; with `few`, one per direction."""
    seen: set[tuple[str, str]] = set()
    for case, spec in specs(operation, target):
        if not all(tensor.elements for tensor in spec.io.operands.values()):
            continue
        key = (spec.direction, "" if few else spec.dtype.name)
        if key not in seen:
            seen.add(key)
            yield case, spec


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
