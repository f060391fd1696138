"""Activations in CUDA C++: the values at which formulas break, and how biased rows are cut."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
import torch
from membound.kernels.backends.cuda_bias import bias_plan
from membound.kernels.discovery import Catalogue
from membound.kernels.dtypes import FLOATS, DType, bfloat16, float16, float32
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.operation import DirectionName
from membound.kernels.target import ARCHITECTURES, reference_target
from membound.kernels.tolerance import compare
from membound.tests.emulator.toolchain import EmulatorToolchain, Libraries, Planner

LIMITS = ("silu", "gelu", "gelu_tanh", "mish", "hardswish")
"""x · share(x): -0 and slope 0 at -inf, inf and slope 1 at inf."""
NAMES = (*LIMITS, "relu", "leaky_relu", "elu", "sigmoid", "tanh")
LARGEST = 3.4028234663852886e38
SPECIAL = [
    *(0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 4.0, -4.0, 6.0, -6.0, 11.5, -11.5, 13.24, -13.24),
    *(60.0, -60.0, 88.0, -88.0, 1e4, -1e4, 1e-40, -1e-40, inf, -inf, nan),
]
HUGE = [1e30, -1e30, LARGEST, -LARGEST]
DIRECTIONS: tuple[DirectionName, ...] = ("forward", "backward")


@pytest.fixture(scope="module")
def libraries(catalogue: Catalogue, spec_of: Any) -> Libraries:
    """One compilation of all that is asked for here."""
    planned = Libraries()
    for name in NAMES:
        for direction in DIRECTIONS:
            for dtype in FLOATS:
                prepare(catalogue, spec_of, name, direction, dtype, 8, Planner(planned))
    planned.compile()
    return planned


def prepare(
    catalogue: Catalogue,
    spec_of: Any,
    name: str,
    direction: DirectionName,
    dtype: DType,
    columns: int,
    toolchain: Any,
) -> Any:
    operation = catalogue.operations[name]
    spec = spec_of(operation, direction, {"rows": 1, "columns": columns}, dtype)
    form = catalogue.default(name, "cuda")
    assert form is not None
    target = reference_target("sm_90")
    return spec.io, form.prepare(replace(spec, target=target, toolchain=toolchain))


Run = Any


@pytest.fixture
def run(catalogue: Catalogue, spec_of: Any, libraries: Libraries) -> Run:
    def run_one(
        name: str, direction: DirectionName, dtype: DType, *inputs: torch.Tensor
    ) -> torch.Tensor:
        columns, toolchain = inputs[0].shape[1], EmulatorToolchain(libraries, count=False)
        io, prepared = prepare(catalogue, spec_of, name, direction, dtype, columns, toolchain)
        tensors = {t.name: value for t, value in zip(io.reads, inputs, strict=True)}
        (out,) = io.writes
        tensors[out.name] = torch.full(out.shape, 7.0, dtype=dtype.torch_dtype)
        prepared.bind(tensors, None)()
        return tensors[out.name]

    return run_one


def special(dtype: DType) -> torch.Tensor:
    values = SPECIAL if dtype is float16 else SPECIAL + HUGE
    return torch.tensor([values]).to(dtype.torch_dtype)


def close(value: torch.Tensor, exact: torch.Tensor, dtype: DType) -> None:
    """To a few roundings where they are large, and to the smallest normal numbers."""
    smallest = torch.finfo(dtype.torch_dtype).smallest_normal
    expected = exact.to(dtype.torch_dtype)
    torch.testing.assert_close(
        value.double(), expected.double(), rtol=max(2 * dtype.epsilon, 2e-5), atol=4 * smallest,
        equal_nan=True,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_special_values(catalogue: Catalogue, run: Run, name: str, dtype: DType) -> None:
    x = special(dtype)
    directions = catalogue.operations[name].directions({"rows": 1, "columns": x.numel()}, dtype)
    exact = evaluate(directions.forward, {"x": x})["y"]
    y = run(name, "forward", dtype, x)
    close(y, exact, dtype)
    assert not y[x.isfinite()].isnan().any()
    zero = (exact == 0) & (y == 0)
    assert torch.equal(y[zero].signbit(), exact[zero].signbit())

    assert directions.backward is not None
    kept = directions.backward.reads[1].name
    given = {"dy": torch.ones_like(x), kept: x if kept == "x" else exact.to(x.dtype)}
    dx = run(name, "backward", dtype, *given.values())
    exact = evaluate(directions.backward, given)["dx"]
    # A slope of zero between rises and falls is a difference of terms near 1.
    ends = (x.abs() > 15) | x.isnan()
    close(dx[ends], exact[ends], dtype)
    middle = ~ends
    limit = dtype.epsilon + 2e-6
    assert (dx[middle].double() - exact[middle]).abs().max() <= limit


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", LIMITS)
def test_limits_at_infinity(run: Run, name: str, dtype: DType) -> None:
    x = torch.tensor([[inf, -inf, 60.0, -60.0, nan]], dtype=dtype.torch_dtype)
    y = run(name, "forward", dtype, x)[0]
    assert y[0] == inf and y[1] == 0 and y[1].signbit() and y[4].isnan()
    assert float(y[2]) == pytest.approx(60, rel=2 * dtype.epsilon)
    dx = run(name, "backward", dtype, torch.ones_like(x), x)[0]
    assert dx[:4].tolist() == pytest.approx([1, 0, 1, 0], abs=2.0**-22)
    assert dx[4].isnan() or name == "hardswish"  # as PyTorch: neither below -3 nor below 3


def test_the_tails_of_gelu_do_not_cancel(run: Run) -> None:
    x = torch.tensor([[-4.0, -6.0, -11.5, 13.24, -13.24]])
    erf = run("gelu", "forward", float32, x)[0].tolist()
    assert erf[:2] == pytest.approx([-1.26685e-4, -5.91953e-9], rel=1e-5)
    assert erf[2] == pytest.approx(-7.6e-30, rel=0.01)
    assert erf[3] == pytest.approx(13.24) and -1e-37 < erf[4] <= 0
    tanh = run("gelu_tanh", "forward", float32, x)[0].tolist()
    assert tanh[:2] == pytest.approx([-7.02459e-5, -8.43965e-11], rel=1e-5)
    assert tanh[3] == pytest.approx(13.24) and tanh[4] == 0


def test_relu_keeps_minus_zero_and_nan(run: Run) -> None:
    y = run("relu", "forward", float32, torch.tensor([[-0.0, nan, -1e-45, 0.0]]))[0]
    assert y[0] == 0 and y[0].signbit() and y[1].isnan()
    assert y[2:].tolist() == [0, 0] and not y[2:].signbit().any()


@pytest.mark.parametrize("name", ["tanh", "elu"])
def test_small_numbers_keep_their_digits(run: Run, name: str) -> None:
    """1 - 2 / (1 + exp(2x)) and exp(x) - 1 would give 0, or whole multiples of 2^-24."""
    x = -torch.logspace(-30, 0, 64)[None]
    y = run(name, "forward", float32, x)
    exact = {"tanh": torch.tanh, "elu": torch.expm1}[name](x.double())
    torch.testing.assert_close(y.double(), exact, rtol=4e-7, atol=0)


@pytest.mark.parametrize(("name", "bits"), [("gelu", 11), ("mish", 13), ("gelu_tanh", 13)])
@pytest.mark.parametrize("dtype", [float32, float16], ids=str)
def test_error_over_the_whole_range(
    catalogue: Catalogue, run: Run, name: str, bits: int, dtype: DType
) -> None:
    """Relative, also in the tail: float32 to 2^-16 there, float16 to what its storage rounds."""
    x = torch.linspace(-9 if dtype is float32 else -2.5, 9, 4096)[None].to(dtype.torch_dtype)
    dims = {"rows": 1, "columns": x.numel()}
    forward = catalogue.operations[name].directions(dims, dtype).forward
    exact = evaluate(forward, {"x": x})["y"]
    error = ((run(name, "forward", dtype, x).double() - exact) / exact).abs()[exact != 0].max()
    assert error < (2.0**-16 if dtype is float32 else 2.0**-11 + 2.0**-bits)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_every_column_has_a_thread(arch: str, backward: bool, itemsize: int) -> None:
    target = reference_target(arch)
    for columns in (1, 5, 40, 768, 4096, 4097, 14336, 20_001, 70_000, 262_144):
        for rows in (1, 3, 8192, 2**31):
            plan = bias_plan(rows, columns, itemsize, target, backward=backward)
            held = (plan.rows.lanes * plan.rows.vectors - plan.rows.ragged) * plan.rows.bytes
            assert (plan.tiles - 1) * held < columns * itemsize <= plan.tiles * held
            assert 1 <= plan.tiles * plan.shares < 2**31 and plan.rows.threads <= 512
            assert plan.rows.shared_bytes <= target.shared_per_block
            assert plan.shares * plan.rows.rows < rows + plan.rows.rows


def test_an_empty_matrix_has_no_share() -> None:
    plan = bias_plan(0, 4096, 2, reference_target("sm_90"), backward=True)
    assert plan.shares == 0


@pytest.mark.parametrize("name", ["swiglu", "reglu", "bias_gelu", "bias_relu"])
def test_a_chain_keeps_for_backward_what_forward_made(
    catalogue: Catalogue, bind: Any, name: str
) -> None:
    """By PyTorch, and again after everything but the inputs was poisoned."""
    forms = catalogue.implementations(catalogue.operations[name], ["torch"])
    form = next(form for form in forms if form.variant == "unfused")
    case = bind(form, "backward", {"rows": 4, "columns": 8}, bfloat16)
    exact = evaluate(case.spec.io, case.inputs)
    for poison in (0.0, nan):
        for tensor in (*case.spec.io.writes, *case.prepared.scratch):
            case.buffers[tensor.name].fill_(poison)
        written = case.run()
        for tensor in case.spec.io.writes:
            torch.testing.assert_close(
                written[tensor.name].double(), exact[tensor.name], rtol=0.05, atol=0.05
            )


@pytest.mark.parametrize(("approximate", "right"), [("tanh", True), ("none", False)])
def test_gelu_tanh_admits_the_cancellation_of_libraries_and_no_other_gelu(
    catalogue: Catalogue, approximate: str, right: bool
) -> None:
    """PyTorch's float32 slope over 2^23 points, which sums 1 + tanh(u) and 1 - tanh(u)²."""
    operation, dims = catalogue.operations["gelu_tanh"], {"rows": 2048, "columns": 4096}
    io = operation.directions(dims, float32)
    assert io.backward is not None
    dy, x = make_inputs(operation, "backward", dims, float32, seed=0).values()
    dx = torch.ops.aten.gelu_backward(dy, x, approximate=approximate)
    exact = evaluate(io.backward, {"dy": dy, "x": x})["dx"]
    assert compare(io.backward.writes[0], dx, exact).ok is right
