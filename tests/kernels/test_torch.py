"""PyTorch computes every operation rightly, again and again, and leaves its inputs alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from math import inf, nan
from typing import Any

import pytest
import torch
from membound.kernels.backends import torch as backend
from membound.kernels.backends.torch import Eager, PerOperation
from membound.kernels.discovery import Catalogue, Implementation, discover
from membound.kernels.dtypes import DTYPES, DType, float16, float32
from membound.kernels.inputs import evaluate
from membound.kernels.operation import DirectionName
from membound.kernels.shapes import Shape
from membound.kernels.spec import CannotPrepare, Spec
from membound.kernels.target import reference_target
from membound.kernels.tolerance import compare, compare_outputs

ROWS = {"rows": 3, "columns": 8}
IN_PLACE = {
    *("copy", "scale", "add", "triad", "fill", "read", "mul", "bias_add", "sigmoid", "tanh"),
    *("cast_to_float32", "cast_to_float16", "cast_to_bfloat16"),
    *("transpose", "nchw_to_nhwc", "nhwc_to_nchw"),
    *("sgd", "grad_accumulate", "grad_clip", "embedding"),
    *("strided_read_2", "strided_read_8", "gather_int32", "gather_int64", "channel_bias_add"),
}
"""Whose forward is given its output."""

ROUNDS = {
    *("adds the gradients of overlapping windows", "adds the gradients of repeated tokens"),
    "keeps mean and rstd",
}
"""What its backward does in halves on the CPU, and is refused for."""


def implementations() -> Iterator[tuple[Implementation, DirectionName]]:
    catalogue = discover()
    for operation in catalogue.operations.values():
        for form in catalogue.implementations(operation, ["torch"]):
            yield form, "forward"
            if not form.refuses("backward", "float32"):
                yield form, "backward"


EVERY = os.environ.get("MEMBOUND_AUDIT") == "all"
CASES = list(implementations())
NAMES = [f"{form.operation.name}-{form.label}-{direction}" for form, direction in CASES]
TYPED = [
    pytest.param(form, direction, dtype, id=f"{name}-{dtype}")
    for (form, direction), name in zip(CASES, NAMES, strict=True)
    for dtype in form.operation.dtypes
    if EVERY or dtype != float16 or form.operation.tier == 1  # else as bfloat16
]


_SMALL = {"vocabulary": 97, "features": 64, "keys": 64, "positions": 16}


def small(shape: Shape) -> dict[str, int] | None:
    """Three rows or images of `shape`; None where it keeps its full size."""
    if shape.kind == "layer":
        return None
    dims = shape.grown(3).dims if shape.grow else shape.dims
    return {name: min(v, _SMALL.get(name, v)) for name, v in dims.items()}


def test_every_operation_but_the_ceilings_is_here() -> None:
    there = {form.operation.name for form, _ in CASES}
    stated = {name for name in discover().operations if not name.startswith("mix_")}
    assert there == stated


@pytest.mark.parametrize(("form", "direction", "dtype"), TYPED)
def test_it_agrees_with_the_reference_twice_and_keeps_its_inputs(
    form: Implementation, direction: DirectionName, dtype: DType, bind: Any
) -> None:
    tried = refused = 0
    for dims in filter(None, map(small, form.operation.shapes)):
        try:
            case = bind(form, direction, dims, dtype)
        except CannotPrepare as reason:
            assert str(reason) in {f"torch {what} in {dtype} on the CPU" for what in ROUNDS}
            refused += 1
            continue
        tried += 1
        exact = evaluate(case.spec.io, case.inputs)
        before = {name: value.clone() for name, value in case.inputs.items()}
        first = {name: value.clone() for name, value in case.run().items()}
        second = case.run()
        for found in compare_outputs(case.spec.io.writes, first, exact):
            assert found.ok, (dims, str(found))
        for tensor in case.spec.io.writes:
            assert torch.equal(first[tensor.name], second[tensor.name])
        for name, value in before.items():
            assert torch.equal(case.inputs[name], value), f"{name} was modified"
            assert case.inputs[name].grad is None and not case.inputs[name].requires_grad
    assert tried or (refused and dtype != float32)


@pytest.mark.parametrize(("form", "direction"), CASES, ids=NAMES)
def test_an_output_is_given_where_torch_publicly_takes_one(
    form: Implementation, direction: DirectionName, bind: Any
) -> None:
    dims = ROWS if "rows" in form.operation.dims else form.operation.shapes[-1].dims
    if "columns" in dims and form.operation.family in {"quantization", "fused"}:
        dims = {**dims, "columns": 32}  # a whole block
    given = direction == "forward" and form.operation.name in IN_PLACE
    assert bind(form, direction, dims, float32).prepared.allocates != given


@pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm"])
def test_the_saved_tensors_of_the_statement_are_ignored(
    catalogue: Catalogue, name: str, bind: Any
) -> None:
    for form in catalogue.implementations(catalogue.operations[name], ["torch"]):
        case = bind(form, "backward", ROWS, float32)
        exact = evaluate(case.spec.io, case.inputs)
        blind = case.buffers | {"rstd": torch.full_like(case.inputs["rstd"], nan)}
        case = replace(case, launch=case.prepared.bind(blind, None))
        for tensor in case.spec.io.writes:
            assert compare(tensor, case.run()[tensor.name], exact[tensor.name]).ok


def test_buffers_may_be_carved_from_one_block_that_is_written_to(
    catalogue: Catalogue, bind: Any
) -> None:
    form = catalogue.default("rms_norm", "torch")
    case = bind(form, "backward", ROWS, float32)
    block = torch.zeros(len(case.buffers) * 4096, dtype=torch.uint8)
    carved = {}
    for place, (name, value) in enumerate(case.buffers.items()):
        raw = block[place * 4096 :][: value.nbytes]
        carved[name] = raw.view(value.dtype).view(value.shape).copy_(value)
    launch = case.prepared.bind(carved, None)
    expected = case.run()
    for _ in range(2):
        block[-1:].fill_(1)
        dx, dweight = launch()
        assert torch.equal(dx, expected["dx"]) and torch.equal(dweight, expected["dweight"])


def test_two_sets_of_buffers_are_bound_side_by_side(catalogue: Catalogue, bind: Any) -> None:
    form = catalogue.default("rms_norm", "torch")
    case = bind(form, "backward", ROWS, float32)
    other = {name: value * 2 for name, value in case.buffers.items()}
    doubled = case.prepared.bind(other, None)
    first, again = case.run()["dx"], case.run()["dx"]
    doubled()
    assert torch.equal(first, again)
    assert not torch.equal(doubled()[0], first)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_max_pool_with_nan_and_infinity(catalogue: Catalogue, dtype: str, bind: Any) -> None:
    dims = {"images": 1, "channels": 1, "height": 4, "width": 4}
    dims |= {"kernel": 2, "stride": 2, "padding": 0}
    form = catalogue.default("max_pool2d", "torch")
    stored = DTYPES[dtype].torch_dtype
    x = torch.tensor([1, nan, -inf, -inf, 2, 3, -inf, -inf, 5, 5, -5, -6, 5, 5, -7, -8])
    case = bind(form, "forward", dims, DTYPES[dtype])
    (y,) = case.prepared.bind(case.buffers | {"x": x.reshape(1, 1, 4, 4).to(stored)}, None)()
    assert y.flatten()[0].isnan() and y.flatten()[1:].tolist() == [-inf, 5, -5]

    offset = evaluate(case.spec.io, {"x": x.reshape(1, 1, 4, 4)})["offset"]
    case = bind(form, "backward", dims, DTYPES[dtype])
    dy = torch.tensor([1, 2, 3, 4]).reshape(1, 1, 2, 2).to(stored)
    (dx,) = case.prepared.bind(case.buffers | {"dy": dy, "offset": offset}, None)()
    assert dx.flatten().tolist() == [0, 1, 2, 0, 0, 0, 0, 0, 3, 0, 4, 0, 0, 0, 0, 0]


def prepared(catalogue: Catalogue, spec_of: Callable[..., Spec], of: Eager, name: str) -> Any:
    """(forward, backward) of made-up functions for an operation that exists."""
    operation = catalogue.operations[name]
    return [of(d, spec_of(operation, d, ROWS, float32)) for d in ("forward", "backward")]


def test_a_function_is_told_the_extents_it_names(
    catalogue: Catalogue, spec_of: Callable[..., Spec]
) -> None:
    seen = []

    def forward(x: torch.Tensor, *, columns: int, factor: int = 3) -> torch.Tensor:
        seen.append((columns, type(columns), factor))
        return x

    made = Eager(forward)(
        "forward", spec_of(catalogue.operations["silu"], "forward", ROWS, float32)
    )
    made.bind({"x": torch.zeros(3, 8)}, None)()
    assert seen == [(8, int, 3)]


def test_backward_is_built_once_and_outside_the_clock(
    catalogue: Catalogue, spec_of: Callable[..., Spec]
) -> None:
    calls = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * x

    _, backward = prepared(catalogue, spec_of, Eager(forward), "silu")
    x = torch.randn(3, 8)
    with torch.no_grad():  # whoever measures may have it off
        launch = backward.bind({"dy": torch.ones(3, 8), "x": x}, None)
        assert calls == [1]
        for _ in range(3):
            assert torch.equal(launch()[0], 2 * x)
            assert torch.equal(launch(dy=torch.full((3, 8), 2.0))[0], 4 * x)
    assert calls == [1]


def test_what_backward_was_built_from_cannot_be_replaced_afterwards(
    catalogue: Catalogue, spec_of: Callable[..., Spec]
) -> None:
    _, backward = prepared(catalogue, spec_of, Eager(torch.nn.functional.silu), "silu")
    tensors = {"dy": torch.ones(3, 8), "x": torch.ones(3, 8)}
    launch = backward.bind(tensors, None)
    with pytest.raises(CannotPrepare, match="bound outside the clock: x"):
        launch(x=torch.zeros(3, 8))


def test_saved_runs_when_buffers_are_bound(
    catalogue: Catalogue, spec_of: Callable[..., Spec]
) -> None:
    order = []

    def saved(dy: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor]:
        order.append("saved")
        return (dy + x,)

    def backward(both: torch.Tensor) -> torch.Tensor:
        order.append("backward")
        return both

    _, made = prepared(
        catalogue, spec_of, Eager(torch.relu, backward=backward, saved=saved), "silu"
    )
    launch = made.bind({"dy": torch.ones(3, 8), "x": torch.ones(3, 8)}, None)
    assert order == ["saved"]
    assert launch()[0][0, 0] == 2 and launch() and order == ["saved", "backward", "backward"]


def test_what_torch_cannot_do_is_a_reason(
    catalogue: Catalogue, spec_of: Callable[..., Spec]
) -> None:
    pool = catalogue.operations["max_pool2d"]
    dims = pool.shapes[-1].dims
    with pytest.raises(CannotPrepare, match=r"autograd needs x .* backward reads dy, offset"):
        Eager(torch.relu)("backward", spec_of(pool, "backward", dims, float32))
    silu = spec_of(catalogue.operations["silu"], "forward", ROWS, float32)
    with pytest.raises(CannotPrepare, match="no function for this direction"):
        Eager()("forward", silu)
    with pytest.raises(CannotPrepare, match="no torch function for the backward of silu"):
        Eager()("backward", spec_of(catalogue.operations["silu"], "backward", ROWS, float32))
    with pytest.raises(CannotPrepare, match="no torch function for silu"):
        PerOperation({"copy": Eager(torch.clone)})("forward", silu)
    with pytest.raises(CannotPrepare, match="not today"):
        Eager(torch.relu, refuses=lambda direction, spec: "not today")("forward", silu)


def test_half_gradients_of_overlapping_windows_are_refused_on_the_cpu_alone(
    catalogue: Catalogue, spec_of: Callable[..., Spec]
) -> None:
    form = catalogue.default("max_pool2d", "torch")
    assert form is not None
    dims = form.operation.shapes[0].dims
    spec = spec_of(form.operation, "backward", dims, DTYPES["bfloat16"])
    with pytest.raises(CannotPrepare, match="in bfloat16 on the CPU"):
        form.prepare(spec)
    assert form.prepare(replace(spec, target=reference_target("sm_90"))).allocates


class FakeStream:
    """Enough of a torch.cuda.Stream."""

    device = "cuda:0"

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


def test_a_stream_is_entered_only_where_it_is_not_the_current_one(
    catalogue: Catalogue, spec_of: Callable[..., Spec], monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    ours, default = FakeStream(log, "ours"), FakeStream(log, "default")
    current = [default]

    @contextmanager
    def entered(stream: FakeStream) -> Iterator[None]:
        log.append(f"enter {stream.name}")
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", entered)

    def copy(y: torch.Tensor, x: torch.Tensor) -> None:
        log.append(f"copy on {current[-1].name}")

    made, _ = prepared(catalogue, spec_of, Eager(torch.relu, into=copy), "silu")
    launch = made.bind({"x": torch.zeros(3, 8), "y": torch.zeros(3, 8)}, ours)
    assert log == ["ours waits for default", "enter ours"]
    log.clear()
    assert launch() is None
    assert log == ["enter ours", "copy on ours"]
    log.clear()
    current.append(ours)
    launch()
    assert log == ["copy on ours"]


def test_without_torch_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.unavailable() is None
    monkeypatch.setattr(backend, "find_spec", lambda name: None if name == "torch" else find_spec)
    assert backend.unavailable() == "torch is not installed (extras cpu, cuda13, cuda12)"
