"""Every `cpu` kernel that discovery finds, against float64: all directions, dtypes, shape kinds.

Shapes are cut down to a few rows or images; the settings of pooling and the number of columns stay,
since they choose the code that runs. What is compiled apart (pooling with other settings than its
first, the steps of a chain) is tested in float32 alone, as are tiers 2 and 3: they differ from an
operation of tier 1 in an expression of float32. Types of 16 bits differ in how an element is loaded
and stored: one operation of a skeleton shows it, and three do for float16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import inf, nan

import pytest
import torch
from membound.kernels.discovery import Catalogue, Implementation, discover
from membound.kernels.dtypes import DTYPES, FLOATS, float16, float32
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.operation import DIRECTIONS, Tensor
from membound.kernels.spec import Launch, Prepared, Spec
from membound.kernels.target import Target
from membound.kernels.tolerance import compare

TARGET = Target("cpu", "test", multiprocessors=2, llc_bytes=32 << 20)
FEW = {"rows": 5, "images": 2, "channels": 3}
HALVED = {"scale", "read", "silu", "bias_gelu", "rms_norm", "add_layer_norm", "softmax"}
HALVED |= {"max_pool2d", "max_pool2d_nhwc"}
HALVED_TWICE = {"scale", "softmax", "max_pool2d"}
_GUARD = 64  # elements around an operand that nothing may touch

Tensors = dict[str, torch.Tensor]
CATALOGUE = discover()


def implementations(catalogue: Catalogue) -> list[Implementation]:
    return [
        implementation
        for operation in catalogue.operations.values()
        for implementation in catalogue.implementations(operation)
        if implementation.backend == "cpu"
    ]


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
    return [dims for index, dims in enumerate(cut) if dims not in cut[:index]]


def spec_of(
    implementation: Implementation, direction: str, dims: Mapping[str, int], dtype: str
) -> Spec:
    io = implementation.operation.directions(dims, DTYPES[dtype]).get(direction)
    assert io is not None
    name = next(known for known in DIRECTIONS if known == direction)
    return Spec(
        implementation.operation, name, dims, DTYPES[dtype], io, TARGET, implementation.variant
    )


def named(operation: str) -> Implementation:
    return next(
        i for i in implementations(CATALOGUE) if i.operation.name == operation and i.label == "cpu"
    )


def placed(tensor: Tensor, shift: int, poison: int) -> torch.Tensor:
    """Memory for an operand, `shift` elements off a line, full of `poison` bytes like its guard."""
    size = tensor.dtype.bits // 8
    raw = torch.full(((tensor.elements + 2 * _GUARD) * size + 64,), poison, dtype=torch.uint8)
    skip = -raw.data_ptr() % 64
    whole = raw[skip : skip + (tensor.elements + 2 * _GUARD) * size]
    start = (_GUARD + shift) * size
    return whole[start : start + tensor.nbytes].view(tensor.dtype.torch_dtype).view(tensor.shape)


def guard_intact(tensor: torch.Tensor, poison: int) -> bool:
    """Whether the bytes right before and after an operand still hold `poison`."""
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    start = tensor.storage_offset() * tensor.element_size()
    end = start + tensor.numel() * tensor.element_size()
    around = torch.cat([storage[start - 32 : start], storage[end : end + 32]])
    return bool((around == poison).all())


Wrong = Callable[[Launch, Tensors], None]


def check(
    spec: Spec, prepared: Prepared, inputs: Tensors, exact: Tensors, shift: int, wrong: Wrong | None
) -> list[str]:
    """What is wrong with one kernel on one placement of its operands; [] if nothing is."""
    found: list[str] = []
    seen: list[dict[str, torch.Tensor]] = []
    for poison in (0x00, 0xFF):
        tensors = {t.name: placed(t, shift, poison) for t in spec.io.operands.values()}
        tensors |= {t.name: placed(t, 0, poison) for t in prepared.scratch}
        for name, value in inputs.items():
            tensors[name].copy_(value)
        launch = prepared.bind(tensors, None)
        if wrong is None:
            launch()
        else:
            wrong(launch, tensors)
        for name, value in inputs.items():
            if not torch.equal(bits(tensors[name]), bits(value)):
                found.append(f"{name} was modified")
        for tensor in spec.io.outputs:
            if not guard_intact(tensors[tensor.name], poison):
                found.append(f"{tensor.name}: written outside")
        seen.append({t.name: tensors[t.name].clone() for t in spec.io.writes})
    for tensor in spec.io.writes:
        first, second = (values[tensor.name] for values in seen)
        if not torch.equal(bits(first), bits(second)):
            found.append(f"{tensor.name} depends on what the output held")
        comparison = compare(tensor, first, exact[tensor.name])
        if not comparison.ok:
            found.append(str(comparison))
    return found


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


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


# Special values


def outputs_of(operation: str, direction: str, dims: Mapping[str, int], inputs: Tensors) -> Tensors:
    """Outputs of the float32 kernel on these inputs."""
    spec = spec_of(named(operation), direction, dims, "float32")
    prepared = named(operation).prepare(spec)
    tensors = {t.name: placed(t, 0, 0xFF) for t in (*spec.io.operands.values(), *prepared.scratch)}
    for name, value in inputs.items():
        tensors[name].copy_(value)
    prepared.bind(tensors, None)()
    return {t.name: tensors[t.name] for t in spec.io.outputs}


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


# The check itself


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
