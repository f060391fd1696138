"""Every implementation, on the GPU, against float64: poisoned outputs, small shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from membound.bench.arena import Arena
from membound.kernels.discovery import BACKENDS, Catalogue, discover
from membound.kernels.target import Target
from membound.tests.gpu.conftest import Gpu
from membound.tests.gpu.lab import Lab, faults, small_specs
from membound.tests.kernels.gpu_cases import wrong_direction

CATALOGUE = discover()
ON_GPU = [backend for backend in BACKENDS if backend != "cpu"]
CPU = Target(kind="cpu", arch="x86_64", multiprocessors=1, llc_bytes=1 << 20)


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return CATALOGUE


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ON_GPU)
@pytest.mark.parametrize("name", CATALOGUE.operations)
def test_it_agrees_with_float64(gpu: Gpu, catalogue: Catalogue, name: str, backend: str) -> None:
    found = catalogue.implementations(catalogue.operations[name], [backend])
    if not found:
        pytest.skip(f"{name} has no {backend}")
    assert faults(gpu.lab, found, few=backend == "compile") == {}


@pytest.fixture
def cpu() -> Lab:
    device = torch.device("cpu")
    return Lab(CPU, device, Arena(device, 1 << 30), None, lambda: None)


def test_the_same_check_passes_on_the_cpu(cpu: Lab, catalogue: Catalogue) -> None:
    found = catalogue.implementations(catalogue.operations["silu"], ["torch"])
    assert found
    assert faults(cpu, found, few=True) == {}


def test_the_check_rejects_a_wrong_reference(cpu: Lab, catalogue: Catalogue) -> None:
    operation = catalogue.operations["silu"]
    (torch_silu, *_) = catalogue.implementations(operation, ["torch"])
    for _, spec in small_specs(operation, CPU, few=True):
        wrong = replace(spec, io=wrong_direction(spec.io))
        assert cpu.wrong(torch_silu, wrong) is not None


def test_every_direction_and_dtype_has_a_small_shape(catalogue: Catalogue) -> None:
    for operation in catalogue.operations.values():
        asked = {(s.direction, s.dtype.name) for _, s in small_specs(operation, CPU, few=False)}
        stated = {
            (direction, dtype.name)
            for direction in ("forward", "backward")
            for dtype in operation.dtypes
            if operation.has(direction)
        }
        assert asked == stated, operation.name
