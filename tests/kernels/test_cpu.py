"""Every `cpu` kernel that discovery finds, against float64: all directions, dtypes, shape kinds.

Shapes are cut down to a few rows or images; the settings of pooling and the number of columns stay,
since they choose the code that runs. What is compiled apart (pooling with other settings than its
first, the steps of a chain) is tested in float32 alone, as are tiers 2 and 3: they differ from an
operation of tier 1 in an expression of float32. Types of 16 bits differ in how an element is loaded
and stored: one operation of a skeleton shows it, and one at all does for float16. Windows without
padding are max_pool2d's. MEMBOUND_AUDIT=all takes more of all three.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import nan

import pytest
import torch
from membound.kernels.discovery import Implementation
from membound.kernels.dtypes import float16, float32
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.operation import DIRECTIONS
from membound.kernels.spec import Launch, Spec
from membound.tests.kernels.cpu_cases import (
    CATALOGUE,
    TARGET,
    Tensors,
    Wrong,
    check,
    implementations,
    named,
    spec_of,
)

FEW = {"rows": 5, "images": 2, "channels": 3}
EVERY = os.environ.get("MEMBOUND_AUDIT") == "all"
HALVED = {"scale", "read", "bias_gelu", "rms_norm", "softmax"}
HALVED_TWICE = {"scale"}
if EVERY:
    HALVED |= {"silu", "add_layer_norm", "max_pool2d", "max_pool2d_nhwc"}
    HALVED_TWICE |= {"softmax", "max_pool2d"}


def settings(dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(dims[name] for name in ("kernel", "stride", "padding") if name in dims)


def specs() -> Iterator[pytest.ParameterSet]:
    for implementation in implementations(CATALOGUE):
        operation = implementation.operation
        first = settings(operation.shapes[0].dims)
        for dims in shapes(implementation):
            for dtype in operation.dtypes:
                apart = settings(dims) != first or implementation.variant or operation.tier > 1
                if dtype != float32 and apart:
                    continue
                shown = HALVED_TWICE if dtype == float16 else HALVED
                if dtype != float32 and float32 in operation.dtypes and operation.name not in shown:
                    continue
                if implementation.variant and operation.tier > 1:  # as chains of tier 1
                    continue
                for direction in DIRECTIONS:
                    if implementation.refuses(direction, dtype.name) is None:
                        spec = spec_of(implementation, direction, dims, dtype.name)
                        extents = "x".join(map(str, dims.values()))
                        name = f"{operation.name}-{implementation.label}-{direction}"
                        yield pytest.param(
                            implementation, spec, id=f"{name}-{dtype.name}-{extents}"
                        )


def shapes(implementation: Implementation) -> list[dict[str, int]]:
    """Each shape of the operation with its leading extents cut, once."""
    cut = [
        {name: min(length, FEW.get(name, length)) for name, length in shape.dims.items()}
        for shape in implementation.operation.shapes
    ]
    if "kernel" in implementation.operation.dims:  # a stride and a window of no fast path
        odd = {"height": 23, "width": 61, "kernel": 5, "stride": 3, "padding": 2}
        cut.append({"images": 1, "channels": 2, **odd})
        if cut[0]["channels"] % 32 and implementation.operation.name.endswith("nhwc"):
            cut.append({**cut[-1], "channels": 64})  # whole lines
        if not EVERY and implementation.operation.name != "max_pool2d":  # each window is compiled
            cut = [dims for dims in cut if dims.get("padding", 1)]
    return [dims for index, dims in enumerate(cut) if dims not in cut[:index]]


@pytest.mark.parametrize(("implementation", "spec"), list(specs()))
def test_agrees_with_the_reference(implementation: Implementation, spec: Spec) -> None:
    prepared = implementation.prepare(spec)
    inputs = make_inputs(spec.operation, spec.direction, spec.dims, spec.dtype, seed=3)
    exact = evaluate(spec.io, inputs)
    for shift in (0, 1):  # on a line, and one element off it
        assert check(spec, prepared, inputs, exact, shift, None) == []


def test_more_threads_than_rows() -> None:
    spec = spec_of(named("rms_norm"), "backward", {"rows": 2, "columns": 40}, "float32")
    spec = replace(spec, target=replace(TARGET, multiprocessors=5))
    inputs = make_inputs(spec.operation, "backward", spec.dims, float32, seed=3)
    prepared = named("rms_norm").prepare(spec)
    assert check(spec, prepared, inputs, evaluate(spec.io, inputs), 0, None) == []


def test_an_intermediate_may_stay_in_the_cache() -> None:
    spec = spec_of(named("add"), "forward", {"rows": 3, "columns": 45}, "bfloat16")
    inputs = make_inputs(spec.operation, "forward", spec.dims, spec.dtype, seed=3)
    prepared = named("add").prepare(replace(spec, streaming=False))
    assert check(spec, prepared, inputs, evaluate(spec.io, inputs), 1, None) == []


def unwritten_tail(launch: Launch, tensors: Tensors) -> None:
    before = tensors["dx"][-1, -1].clone()
    launch()
    tensors["dx"][-1, -1] = before


def stale(launch: Launch, tensors: Tensors) -> None:
    """Nothing runs."""


def swapped_rows(launch: Launch, tensors: Tensors) -> None:
    launch()
    tensors["dx"].copy_(tensors["dx"].flip(0))


def modified_input(launch: Launch, tensors: Tensors) -> None:
    launch()
    tensors["x"][0, 0] += 1


def short_sum(launch: Launch, tensors: Tensors) -> None:
    """The last row is missing from dweight."""
    launch()
    tensors["dweight"] -= tensors["dy"][-1] * tensors["x"][-1] * tensors["rstd"][-1]


def one_nan(launch: Launch, tensors: Tensors) -> None:
    launch()
    tensors["dx"][0, 0] = nan


def beyond_the_end(launch: Launch, tensors: Tensors) -> None:
    launch()
    dx = tensors["dx"]
    torch.as_strided(dx, (1,), (1,), dx.storage_offset() + dx.numel()).fill_(1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        unwritten_tail,
        stale,
        swapped_rows,
        modified_input,
        short_sum,
        one_nan,
        beyond_the_end,
    ],
)
def test_wrong_twins_are_rejected(wrong: Wrong) -> None:
    spec = spec_of(named("rms_norm"), "backward", {"rows": 6, "columns": 70}, "float32")
    inputs = make_inputs(spec.operation, "backward", spec.dims, float32, seed=3)
    prepared, exact = named("rms_norm").prepare(spec), evaluate(spec.io, inputs)
    assert check(spec, prepared, inputs, exact, 0, None) == []
    assert check(spec, prepared, inputs, exact, 0, wrong) != []
