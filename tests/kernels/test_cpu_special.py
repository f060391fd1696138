"""The `cpu` kernels on values that mean something: not a number, infinities, ties, tiny numbers."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
from membound.kernels.dtypes import FLOATS, float32
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.operation import DIRECTIONS
from membound.kernels.tolerance import compare
from membound.tests.kernels.cpu_cases import (
    CATALOGUE,
    bits,
    guard_intact,
    named,
    outputs_of,
    placed,
    spec_of,
)

SPECIAL = torch.tensor(
    [nan, inf, -inf, 0.0, -0.0, 1e-40, -1e-40, 100.0, -100.0, 88.0, -88.0, 87.0, -87.0, 3e38, -3e38]
)


ACTIVATIONS = (
    *("relu", "leaky_relu", "elu", "hardswish", "sigmoid", "tanh"),
    *("silu", "gelu", "gelu_tanh", "mish"),
)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_special_values(name: str) -> None:
    dims = {"rows": 1, "columns": SPECIAL.numel()}
    y = outputs_of(name, "forward", dims, {"x": SPECIAL[None]})["y"][0]
    forward = CATALOGUE.operations[name].directions(dims, float32).forward
    expected = evaluate(forward, {"x": SPECIAL[None]})["y"][0].float()
    assert torch.allclose(y, expected, rtol=1e-6, atol=1e-35, equal_nan=True)
    zero = expected == 0
    assert torch.equal(y[zero].signbit(), expected[zero].signbit())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slopes_at_special_values(name: str) -> None:
    dims = {"rows": 1, "columns": SPECIAL.numel()}
    backward = CATALOGUE.operations[name].directions(dims, float32).backward
    assert backward is not None
    kept = backward.reads[1].name
    inputs = {"dy": torch.ones(1, SPECIAL.numel()), kept: SPECIAL[None]}
    dx = outputs_of(name, "backward", dims, inputs)["dx"][0]
    expected = evaluate(backward, inputs)["dx"][0].float()
    assert torch.allclose(dx, expected, rtol=1e-6, atol=1e-35, equal_nan=True)


@pytest.mark.parametrize("name", ["tanh", "elu"])
def test_small_numbers_keep_their_digits(name: str) -> None:
    x = -torch.logspace(-30, 0, 64)[None]
    y = outputs_of(name, "forward", {"rows": 1, "columns": 64}, {"x": x})["y"]
    exact = {"tanh": torch.tanh, "elu": torch.expm1}[name](x.double())
    torch.testing.assert_close(y.double(), exact, rtol=1e-6, atol=0)


def test_the_tail_of_gelu_does_not_cancel() -> None:
    x = torch.tensor([[-4.0, -6.0, -11.5]])
    y = outputs_of("gelu", "forward", {"rows": 1, "columns": 3}, {"x": x})["y"]
    exact = 0.5 * x.double() * torch.erfc(x.double() * -(0.5**0.5))
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=0)


def test_two_outputs_need_not_lie_alike() -> None:
    """Both leave in whole lines only where lines begin at the same elements."""
    spec = spec_of(named("swiglu"), "backward", {"rows": 2, "columns": 150}, "bfloat16")
    inputs = make_inputs(spec.operation, "backward", spec.dims, spec.dtype, seed=3)
    tensors = {t.name: placed(t, t.name == "dup", 0xFF) for t in spec.io.operands.values()}
    for name, value in inputs.items():
        tensors[name].copy_(value)
    named("swiglu").prepare(spec).bind(tensors, None)()
    exact = evaluate(spec.io, inputs)
    for tensor in spec.io.writes:
        assert compare(tensor, tensors[tensor.name], exact[tensor.name]).ok
        assert guard_intact(tensors[tensor.name], 0xFF)


def test_exponential_is_accurate_where_it_matters() -> None:
    x = torch.linspace(-20, 20, 1 << 14)
    y = outputs_of("silu", "forward", {"rows": 4, "columns": 1 << 12}, {"x": x.view(4, -1)})["y"]
    exact = torch.nn.functional.silu(x.double())
    error = (y.view(-1).double() - exact).abs() / exact.abs().clamp_min(1e-30)
    assert float(error.max()) < 8 * 2.0**-24


def test_softmax_of_special_values() -> None:
    """Beside one another in a row of two vectors and a rest, and alone in a short one."""
    x = torch.randn(6, 37, generator=torch.manual_seed(2))
    x[0, 3], x[1, 36], x[2], x[3, 5], x[4, :36] = nan, inf, -inf, -inf, -inf
    x[5] = x[5] * 1e4
    for columns in (37, 5):
        dims = {"rows": 6, "columns": columns}
        part = x[:, -columns:].contiguous()
        for name in ("softmax", "log_softmax"):
            y = outputs_of(name, "forward", dims, {"x": part})["y"]
            exact = getattr(torch, name)(part.double(), -1).float()
            torch.testing.assert_close(y, exact, rtol=2e-6, atol=1e-37, equal_nan=True)


@pytest.mark.parametrize("name", ["layer_norm", "add_layer_norm"])
def test_the_mean_of_a_layer_norm_does_not_cancel(name: str) -> None:
    dims = {"rows": 3, "columns": 70}
    spec = spec_of(named(name), "forward", dims, "float32")
    inputs = make_inputs(spec.operation, "forward", dims, float32, seed=3)
    inputs["x"] += 1e4
    inputs["x"][1] = 7.0
    if "residual" in inputs:
        inputs["residual"][1] = 0.0
    outputs, exact = outputs_of(name, "forward", dims, inputs), evaluate(spec.io, inputs)
    for output in ("y", "mean", "rstd"):
        torch.testing.assert_close(outputs[output], exact[output].float(), rtol=1e-3, atol=3e-3)
    assert torch.equal(outputs["y"][1], inputs["bias"])


def test_a_nan_stays_in_its_row() -> None:
    dims = {"rows": 4, "columns": 50}
    for name in ("layer_norm", "rms_norm", "add_layer_norm"):
        for direction in DIRECTIONS:
            spec = spec_of(named(name), direction, dims, "float32")
            inputs = make_inputs(spec.operation, direction, dims, float32, seed=3)
            inputs[spec.io.reads[0].name][2, 7] = nan
            outputs = outputs_of(name, direction, dims, inputs)
            written = outputs["y" if direction == "forward" else "dx"].isnan()
            assert written[2].all() and not written[[0, 1, 3]].any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_copy_moves_every_bit_pattern(dtype: object) -> None:
    spec = spec_of(named("copy"), "forward", {"rows": 16, "columns": 4096}, str(dtype))
    if spec.dtype.bits == 16:
        x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(spec.dtype.torch_dtype)
    else:
        pattern = torch.randint(-(1 << 31), 1 << 31, (1 << 16,), generator=torch.manual_seed(0))
        x = pattern.to(torch.int32).view(torch.float32)
    tensors = {t.name: placed(t, 0, 0) for t in spec.io.operands.values()}
    tensors["x"].copy_(x.view(16, 4096))
    named("copy").prepare(spec).bind(tensors, None)()
    assert torch.equal(bits(tensors["y"]), bits(tensors["x"]))


def test_bfloat16_rounds_to_nearest_even_and_keeps_nan() -> None:
    spec = spec_of(named("add"), "forward", {"rows": 4, "columns": 1024}, "bfloat16")
    inputs = make_inputs(spec.operation, "forward", spec.dims, spec.dtype, seed=5)
    inputs["a"][0, :4] = torch.tensor([nan, inf, 3.38e38, -0.0], dtype=torch.bfloat16)
    inputs["b"][0, :4] = torch.tensor([1.0, -inf, 3.38e38, -0.0], dtype=torch.bfloat16)
    tensors = {t.name: placed(t, 0, 0) for t in spec.io.operands.values()}
    for name, value in inputs.items():
        tensors[name].copy_(value)
    named("add").prepare(spec).bind(tensors, None)()
    expected = (inputs["a"].float() + inputs["b"].float()).bfloat16()
    same = (tensors["y"] == expected) | (tensors["y"].isnan() & expected.isnan())
    assert bool(same.all())
    assert bool(tensors["y"][0, 3].signbit())


POOL = {"images": 1, "channels": 1, "height": 9, "width": 41, "kernel": 3, "stride": 2}


@pytest.mark.parametrize("kind", ["ties", "nan", "lowest", "infinite"])
def test_pooling_of_special_values(kind: str) -> None:
    dims = {**POOL, "padding": 1}
    generator = torch.manual_seed(1)
    x = torch.randint(0, 3, (1, 1, 9, 41), generator=generator).float()  # many ties
    if kind == "nan":
        x[torch.rand(x.shape, generator=generator) < 0.1] = nan
    elif kind == "lowest":
        x.fill_(-inf)
    elif kind == "infinite":
        x[torch.rand(x.shape, generator=generator) < 0.2] = inf
        x[torch.rand(x.shape, generator=generator) < 0.4] = -inf
    for name, image in (("max_pool2d", x), ("max_pool2d_nhwc", x.permute(0, 2, 3, 1))):
        outputs = outputs_of(name, "forward", dims, {"x": image})
        forward = CATALOGUE.operations[name].directions(dims, float32).forward
        exact = evaluate(forward, {"x": image})
        assert torch.equal(outputs["y"].isnan(), exact["y"].isnan())
        assert torch.equal(outputs["y"].nan_to_num(7), exact["y"].float().nan_to_num(7))
        assert torch.equal(outputs["offset"], exact["offset"])
