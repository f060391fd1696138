"""What the tests of kernels share: the catalogue, a CPU to prepare for, one run of a case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from membound.kernels.discovery import Catalogue, Implementation, discover
from membound.kernels.dtypes import DType
from membound.kernels.inputs import make_inputs
from membound.kernels.operation import DirectionName, Operation
from membound.kernels.spec import Prepared, Spec, Tensors
from membound.kernels.target import Target

CPU = Target(kind="cpu", arch="x86_64", multiprocessors=1, llc_bytes=1 << 20)


@dataclass(frozen=True)
class Bound:
    """A case bound to poisoned outputs; `run` gives what it writes, by name."""

    spec: Spec
    prepared: Prepared
    inputs: Tensors
    buffers: Tensors
    launch: Callable[..., Any]

    def run(self) -> dict[str, torch.Tensor]:
        returned = self.launch()
        assert (returned is not None) == self.prepared.allocates
        names = [tensor.name for tensor in self.spec.io.writes]
        given = (self.buffers[name] for name in names)
        return dict(zip(names, given if returned is None else returned, strict=True))


def make_spec(
    operation: Operation,
    direction: DirectionName,
    dims: Mapping[str, int],
    dtype: DType,
    variant: str = "",
) -> Spec:
    io = operation.directions(dims, dtype).get(direction)
    assert io is not None
    return Spec(operation, direction, dims, dtype, io, CPU, variant=variant)


def bind_case(
    implementation: Implementation, direction: DirectionName, dims: Mapping[str, int], dtype: DType
) -> Bound:
    """Raises CannotPrepare where it cannot run."""
    operation = implementation.operation
    spec = make_spec(operation, direction, dims, dtype, implementation.variant)
    prepared = implementation.prepare(spec)
    inputs = make_inputs(operation, direction, dims, dtype, seed=5)
    poisoned = {
        tensor.name: torch.full((tensor.nbytes,), 0xFF, dtype=torch.uint8)
        .view(tensor.dtype.torch_dtype)
        .reshape(tensor.shape)
        for tensor in (*spec.io.outputs, *prepared.scratch)
    }
    buffers = poisoned | inputs
    return Bound(spec, prepared, inputs, buffers, prepared.bind(buffers, None))


Bind = Callable[[Implementation, DirectionName, Mapping[str, int], DType], Bound]


@pytest.fixture(scope="session")
def bind() -> Bind:
    return bind_case


@pytest.fixture(scope="session")
def spec_of() -> Callable[..., Spec]:
    return make_spec


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return discover()
