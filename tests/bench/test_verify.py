"""Verification passes the right kernel and rejects each wrong one, naming what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from membound.bench.arena import Arena
from membound.bench.verify import Verified, same_bytes, verify
from membound.kernels.discovery import discover
from membound.kernels.dtypes import float32
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.spec import Spec
from membound.kernels.target import MIB, Target

FAULTY = Path(__file__).parent / "faulty"
TARGET = Target(kind="cpu", arch="test", multiprocessors=1, llc_bytes=MIB)


def judged(variant: str) -> Verified:
    catalogue = discover([FAULTY])
    operation = catalogue.operations["shift"]
    dims = {"rows": 64, "columns": 96}
    io = operation.directions(dims, float32).forward
    implementation = next(i for i in catalogue.implementations(operation) if i.variant == variant)
    prepared = implementation.prepare(
        Spec(operation, "forward", dims, float32, io, TARGET, variant=variant)
    )
    inputs = make_inputs(operation, "forward", dims, float32, seed=0)
    arena = Arena(torch.device("cpu"), 512 * MIB)
    tensors = arena.take_all(io.operands.values())
    for name, value in inputs.items():
        tensors[name].copy_(value)
    launch = prepared.bind(tensors, None)
    return verify(io, launch, tensors, inputs, evaluate(io, inputs), lambda: None, arena.take)


def test_the_right_kernel_passes() -> None:
    verdict = judged("")
    assert verdict.reason is None
    assert verdict.max_error is not None
    assert verdict.tolerance is not None
    assert verdict.max_error <= verdict.tolerance


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        ("unwritten_tail", "y: error"),
        ("stale_output", "y depends on what the output held before"),
        ("swapped_rows", "y: error"),
        ("modified_input", "input x was modified"),
        ("wrote_nan", "y: error inf"),
    ],
)
def test_each_wrong_kernel_is_rejected(variant: str, reason: str) -> None:
    verdict = judged(variant)
    assert verdict.reason is not None
    assert verdict.reason.startswith(reason)


def test_bytes_are_compared_not_numbers() -> None:
    nan = torch.tensor([float("nan")])
    assert same_bytes(nan, nan.clone())
    assert not same_bytes(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bytes(torch.zeros(2), torch.zeros(3))
    assert same_bytes(torch.zeros(0), torch.zeros(0))


@pytest.mark.parametrize("begin", range(9))
@pytest.mark.parametrize("count", [0, 1, 8])
def test_bytes_are_compared_wherever_they_lie(begin: int, count: int) -> None:
    memory = torch.arange(32, dtype=torch.uint8)
    lying, other = memory[begin : begin + count], memory[begin : begin + count].clone()
    assert same_bytes(lying, other)
    if count:
        other[-1] += 1
        assert not same_bytes(lying, other)
