"""One direction of one operation, run by the emulator on inputs that a test chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from membound.kernels.backends.cuda import Geometry
from membound.kernels.discovery import discover
from membound.kernels.dtypes import DType
from membound.kernels.operation import DirectionName
from membound.kernels.spec import Launch, Prepared, Spec, Tensors
from membound.kernels.target import reference_target

from .cases import blank, place, sparse
from .toolchain import EmulatorToolchain, Libraries

CATALOGUE = discover()


def spec_of(
    operation: str,
    direction: DirectionName,
    dims: Mapping[str, int],
    dtype: DType,
) -> Spec:
    one = CATALOGUE.operations[operation]
    io = one.directions(dims, dtype).get(direction)
    assert io is not None
    return Spec(one, direction, dims, dtype, io, reference_target("sm_90"))


def prepare(spec: Spec, toolchain: Any) -> Prepared:
    """The `cuda` implementation with this toolchain. Raises CannotPrepare."""
    found = CATALOGUE.implementations(spec.operation)
    cuda = next(one for one in found if one.label == "cuda")
    return cuda.prepare(replace(spec, toolchain=toolchain))


def bound(
    spec: Spec,
    toolchain: Any,
    inputs: Mapping[str, torch.Tensor],
    offsets: Mapping[str, int] | None = None,
) -> tuple[Tensors, Launch]:
    """Buffers by name, `offsets` elements past an aligned address, and the launch on them."""
    prepared = prepare(spec, toolchain)
    past = offsets or {}
    tensors = (*spec.io.outputs, *prepared.scratch)
    buffers = {t.name: blank(t, past.get(t.name, 0)) for t in tensors}
    buffers |= {t.name: place(t, inputs[t.name], past.get(t.name, 0)) for t in spec.io.reads}
    return buffers, prepared.bind(buffers, None)


def run_cuda(
    libraries: Libraries, spec: Spec, inputs: Mapping[str, torch.Tensor], seed: int = 1
) -> dict[str, torch.Tensor]:
    """Outputs (saved ones too) by name."""
    toolchain = EmulatorToolchain(libraries, seed=seed, count=False)
    buffers, launch = bound(spec, toolchain, inputs)
    for tensor in spec.io.outputs:
        buffers[tensor.name].view(torch.uint8).fill_(0xFF)
    launch()
    return {t.name: buffers[t.name] for t in spec.io.outputs}


def last_blocks(geometry: Geometry) -> list[int]:
    """Two, so that all columns of the last rows are there."""
    return [block for block in (geometry.blocks - 2, geometry.blocks - 1) if block >= 0]


def beyond(libraries: Libraries, spec: Spec) -> tuple[Tensors, Launch]:
    """Buffers that hardly exist, for more than 2^31 elements, and a launch of the last blocks.

    What has a fill of integers has it: indices, tables; all else is 0.
    """
    toolchain = EmulatorToolchain(libraries, only_blocks=last_blocks, count=False)
    prepared = prepare(spec, toolchain)
    operands = (*spec.io.operands.values(), *prepared.scratch)
    buffers = {t.name: sparse(t.shape, t.dtype.torch_dtype) for t in operands}
    for tensor in spec.io.reads:
        if tensor.dtype.bits > 16 and tensor.fill and not tensor.dtype.epsilon:
            buffers[tensor.name].copy_(tensor.fill(tensor, torch.Generator()))

    def launch() -> None:  # bound to what a test has put into its inputs by then
        prepared.bind(buffers, None)()

    return buffers, launch
