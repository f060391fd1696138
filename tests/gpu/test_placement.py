"""Kernels over managed, pinned and pageable memory, where the device says that it reaches them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from membound.bench.arena import Arena
from membound.bench.placed_memory import PlacedMemory
from membound.bench.verify import verify
from membound.kernels.discovery import discover
from membound.kernels.dtypes import float32
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.spec import Spec
from membound.results.record import Placement
from membound.tests.gpu.conftest import Gpu

DIMS = {"rows": 1024, "columns": 1000}


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["managed", "pinned", "pageable"])
def test_a_copy_is_right_wherever_its_operands_lie(gpu: Gpu, placement: Placement) -> None:
    refused = gpu.selected.unplaceable.get(placement)
    if refused:
        pytest.skip(refused)
    catalogue = discover()
    operation = catalogue.operations["copy"]
    (ours,) = (i for i in catalogue.implementations(operation, ["cuda"]) if not i.variant)
    io = operation.directions(DIMS, float32).forward
    inputs = make_inputs(operation, "forward", DIMS, float32, seed=1, device=gpu.device)
    prepared = ours.prepare(Spec(operation, "forward", DIMS, float32, io, gpu.lab.target))
    arena = Arena(gpu.device, 1 << 30, PlacedMemory(gpu.device))
    tensors = arena.take_all(io.operands.values(), placement)
    assert all(tensor.device == gpu.device for tensor in tensors.values())
    tensors["x"].copy_(inputs["x"])
    launch = prepared.bind(tensors, gpu.lab.stream)
    exact = evaluate(io, inputs, gpu.device)
    judged = verify(io, launch, tensors, inputs, exact, gpu.lab.synchronize, arena.take)
    assert judged.reason is None
    bent = {**exact, "y": exact["y"] + 1}  # and the check does see this memory
    wrong = verify(io, launch, tensors, inputs, bent, gpu.lab.synchronize, arena.take)
    assert replace(wrong, outputs={}).reason is not None
