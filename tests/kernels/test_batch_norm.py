"""Batch, group and instance norm: values that break them, refusals, launches no shape breaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, nan

import pytest
import torch
from membound.kernels.backends import cuda_channel, cuda_channel_group
from membound.kernels.backends.cuda import MAX_BLOCKS, Geometry
from membound.kernels.dtypes import FLOATS, DType, bfloat16, float16, float32
from membound.kernels.fused.batch_norm_add_relu import unpacked
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.operation import DirectionName
from membound.kernels.spec import Spec
from membound.kernels.target import ARCHITECTURES, reference_target
from membound.kernels.tolerance import compare
from membound.tests.emulator.cases import sparse
from membound.tests.emulator.run import CATALOGUE, bound, prepare, run_cuda, spec_of
from membound.tests.emulator.toolchain import EmulatorToolchain, Libraries, Planner

IMAGES = ("images", "channels", "height", "width")
NAMES = ("batch_norm", "batch_norm_nhwc", "group_norm", "instance_norm")
SMALL = (2, 8, 5, 8)
WIDE = (2, 8, 64, 64)


def dims_of(name: str, *extents: int) -> dict[str, int]:
    """One group a channel where there are groups, so that all of them agree."""
    dims = dict(zip(IMAGES, extents, strict=True))
    return dims | ({"groups": extents[1]} if name == "group_norm" else {})


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    planned = Libraries()
    for name in (*NAMES, "batch_norm_relu", "batch_norm_add_relu"):
        for dtype in FLOATS:
            for extents in (SMALL, WIDE):
                for direction in ("forward", "backward"):
                    spec = spec_of(name, direction, dims_of(name, *extents), dtype)
                    prepare(spec, Planner(planned))
    planned.compile()
    return planned


def by_torch(spec: Spec, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    form = next(i for i in CATALOGUE.implementations(spec.operation) if i.label == "torch")
    returned = form.prepare(spec).bind(dict(inputs), None)()
    assert returned is not None
    return dict(zip([t.name for t in spec.io.writes], returned, strict=True))


def every(
    libraries: Libraries, name: str, x: torch.Tensor, **changed: torch.Tensor
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """(who, outputs by name) of NCHW images x, weight 1, bias 0: reference, kernel, torch."""
    dtype = next(d for d in FLOATS if d.torch_dtype == x.dtype)
    spec = spec_of(name, "forward", dims_of(name, *x.shape), dtype)
    plain = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
    inputs = {
        t.name: torch.full(t.shape, plain[t.name], dtype=t.dtype.torch_dtype)
        for t in spec.io.reads
        if t.name != "x"
    }
    last = name.endswith("_nhwc")
    inputs |= {"x": x.permute(0, 2, 3, 1).contiguous() if last else x} | changed
    for who, outputs in (
        ("reference", evaluate(spec.io, inputs)),
        ("cuda", run_cuda(libraries, spec, inputs)),
        ("torch", by_torch(spec, inputs)),
    ):
        y = outputs["y"]
        yield who, outputs | {"y": y.permute(0, 3, 1, 2) if last else y}


@pytest.mark.parametrize("name", NAMES)
def test_the_variance_of_numbers_far_from_zero(libraries: Libraries, name: str) -> None:
    """torch is not held to it: on the CPU it adds x · scale to a shift, which cancels."""
    for x in far_from_zero():
        (_, exact), (_, found), _ = every(libraries, name, x)
        torch.testing.assert_close(found["y"].double(), exact["y"], rtol=1e-3, atol=4e-3)


def far_from_zero() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    spread = torch.tensor([1.0] * 4 + [0.1] * 4)[:, None, None]
    middle = torch.tensor([1e4] * 4 + [4096.0] * 4)[:, None, None]
    pair = torch.tensor([4096.0, 4097.0]).repeat(2, 8, 5, 4)
    return [pair, middle + spread * torch.randn(WIDE, generator=generator)]


def test_a_variance_by_mean_squares_would_be_seen() -> None:
    for x in far_from_zero():
        mean = x.mean((0, 2, 3))
        wrong = ((x * x).mean((0, 2, 3)) - mean * mean).double()
        exact = x.double().var((0, 2, 3), correction=0)
        rstd = torch.stack([(var.clamp(min=0) + 1e-5) ** -0.5 for var in (wrong, exact)])
        assert ((rstd[0] / rstd[1] - 1).abs() > 0.1).all()


@pytest.mark.parametrize("name", NAMES)
def test_first_values_that_stand_out_cost_no_digits(libraries: Libraries, name: str) -> None:
    """Sums are formed about the first values of a thread."""
    x = torch.randn(WIDE, generator=torch.Generator().manual_seed(7))
    x[0, :, 0, 0] = 1e4
    (_, exact), (_, found), _ = every(libraries, name, x)
    torch.testing.assert_close(found["y"].double(), exact["y"], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("extents", [SMALL, WIDE, (1, 3, 5, 3)])
def test_constant_channels_give_exactly_their_bias(
    libraries: Libraries, name: str, extents: tuple[int, ...]
) -> None:
    x = torch.tensor([0.1, -1e4 / 3, 0.0, 7.7, 1e-3, 3e4, -0.3, 5.0])[: extents[1], None, None]
    x = x.expand(extents).contiguous()
    bias = torch.arange(float(extents[1])) + 0.7
    found = dict(every(libraries, name, x, bias=bias))
    assert torch.equal(found["cuda"]["y"], bias[:, None, None].expand(extents))
    if name.startswith("batch"):
        assert torch.equal(found["cuda"]["mean"], x[0, :, 0, 0])
        torch.testing.assert_close(found["cuda"]["updated_mean"], 0.1 * x[0, :, 0, 0])
        torch.testing.assert_close(found["cuda"]["updated_var"], torch.full(extents[1:2], 0.9))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_what_is_not_finite_stays_in_its_channel(
    libraries: Libraries, name: str, value: float
) -> None:
    x = torch.randn(SMALL, generator=torch.Generator().manual_seed(2))
    x[1, 3, 2, 1] = value
    images = range(2) if name.startswith("batch") else [1]
    for who, outputs in every(libraries, name, x):
        missing = outputs["y"].isnan()
        assert missing[images, 3].all(), who
        assert missing.sum() == len(images) * 40, who
        for statistic in ("updated_mean", "updated_var") if name.startswith("batch") else ():
            finite = outputs[statistic].isfinite()
            assert finite.tolist() == [c != 3 for c in range(8)], (who, statistic)


@pytest.mark.parametrize("name", NAMES)
def test_statistics_of_halves_are_formed_in_float32(libraries: Libraries, name: str) -> None:
    x = torch.tensor([300.0, -300.0], dtype=torch.float16).repeat(2, 8, 5, 4)
    for who, outputs in every(libraries, name, x):
        torch.testing.assert_close(outputs["y"].double(), x.double() / 300, rtol=1e-3, atol=0)
        assert outputs["y"].isfinite().all(), who
    x = torch.tensor([5.0, 5.125], dtype=torch.bfloat16).repeat(2, 8, 5, 4)
    expected = 0.0625 / (0.0625**2 + 1e-5) ** 0.5
    for who, outputs in every(libraries, name, x):
        y = outputs["y"][0, 0, 0, 1].double().item()
        assert y == pytest.approx(expected, rel=2**-8), who


def test_running_statistics_are_pytorchs(libraries: Libraries) -> None:
    layer = torch.nn.BatchNorm2d(8)
    x = 3 + 2 * torch.randn(SMALL, generator=torch.Generator().manual_seed(3))
    layer(x)
    for who, outputs in every(libraries, "batch_norm", x):
        for name in ("mean", "var"):
            mine, theirs = (
                outputs[f"updated_{name}"].double(),
                layer.state_dict()[f"running_{name}"],
            )
            torch.testing.assert_close(mine, theirs.double(), rtol=1e-5, atol=1e-6, msg=who)


def test_groups_are_pytorchs(libraries: Libraries) -> None:
    x = torch.randn(3, 6, 5, 7, generator=torch.Generator().manual_seed(4))
    spec = spec_of("group_norm", "forward", dims_of("x", *x.shape) | {"groups": 2}, float32)
    inputs = make_inputs(spec.operation, "forward", spec.dims, float32, seed=1) | {"x": x}
    exact = torch.nn.functional.group_norm(x, 2, inputs["weight"], inputs["bias"])
    for y in (run_cuda(libraries, spec, inputs)["y"], evaluate(spec.io, inputs)["y"].float()):
        torch.testing.assert_close(y, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [*NAMES, "batch_norm_relu", "batch_norm_add_relu"])
def test_gradients_do_not_depend_on_the_order_of_blocks(libraries: Libraries, name: str) -> None:
    spec = spec_of(name, "backward", dims_of(name, *WIDE), float32)
    inputs = make_inputs(spec.operation, "backward", spec.dims, float32, seed=1)
    first, *others = (run_cuda(libraries, spec, inputs, seed) for seed in (1, 2, 3))
    for other in others:
        assert all(torch.equal(first[t.name], other[t.name]) for t in spec.io.writes)


def test_relu_is_decided_again_as_forward_decided_it(libraries: Libraries) -> None:
    """Where pre is exactly 0, a hair above it, or hidden in a bias far from 0."""
    spec = spec_of("batch_norm_relu", "backward", dims_of("x", *SMALL), float32)
    inputs = make_inputs(spec.operation, "backward", spec.dims, float32, seed=5)
    inputs["x"] = torch.randn(SMALL, generator=torch.Generator().manual_seed(6))
    inputs["bias"] = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0])
    inputs["mean"], inputs["rstd"] = inputs["x"][0, :, 0, 0].clone(), torch.ones(8)
    inputs["weight"] = torch.ones(8)
    inputs["x"][1] = inputs["mean"][:, None, None] - inputs["bias"][:, None, None]
    forward = spec_of("batch_norm_inference_relu", "forward", dims_of("x", *SMALL), float32)
    given = {name: inputs[name] for name in ("x", "weight", "bias")}
    given |= {"running_mean": inputs["mean"], "running_var": torch.full((8,), 1 - 1e-5)}
    passed = run_cuda(libraries, forward, given)["y"] > 0
    exact = evaluate(spec.io, inputs)
    found = run_cuda(libraries, spec, inputs)
    for name in ("dx", "dbias", "dweight"):
        torch.testing.assert_close(found[name].double(), exact[name], rtol=1e-4, atol=1e-4)
    sums = torch.where(passed, inputs["dy"], 0.0).double().sum((0, 2, 3))
    torch.testing.assert_close(found["dbias"].double(), sums, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("extents", [SMALL, (2, 3, 5, 7), (3, 2, 1, 1), (2, 2, 6, 11)])
def test_a_bit_is_kept_of_every_element_that_passes(
    libraries: Libraries, extents: tuple[int, ...], dtype: DType
) -> None:
    """With NaN, -0 and sums of exactly 0; bits beyond a plane are 0."""
    spec = spec_of("batch_norm_add_relu", "forward", dims_of("x", *extents), dtype)
    inputs = make_inputs(spec.operation, "forward", spec.dims, dtype, seed=5)
    inputs["weight"].zero_()  # the norm is the bias
    inputs["bias"] = torch.tensor([0.0, 1.0] * extents[1])[: extents[1]]
    flat = inputs["residual"].view(-1)
    special = torch.tensor([nan, 0.0, -0.0, -1.0, 1.0, inf, -inf])[: flat.numel()]
    flat[-len(special) :] = special
    exact, found = evaluate(spec.io, inputs), run_cuda(libraries, spec, inputs)
    assert torch.equal(found["mask"], exact["mask"])
    torch.testing.assert_close(found["y"].double(), exact["y"], rtol=1e-2, atol=0, equal_nan=True)
    assert torch.equal(unpacked(found["mask"], extents), ~(found["y"] <= 0))


@pytest.mark.parametrize(
    ("name", "extents", "message"),
    [
        ("batch_norm", (1, 3, 1, 1), "more than one value per channel in training; got 1"),
        ("batch_norm", (0, 3, 4, 4), "more than one value per channel in training; got 0"),
        ("batch_norm_nhwc", (1, 3, 1, 1), "more than one value per channel"),
        ("batch_norm_relu", (1, 3, 1, 1), "more than one value per channel"),
        ("instance_norm", (2, 3, 1, 1), "images of more than one pixel, at least one"),
        ("instance_norm", (0, 3, 4, 4), "images of more than one pixel, at least one"),
        ("group_norm", (1, 1, 1, 1), "more than one value per channel; got 1"),
    ],
)
def test_what_has_no_variance_is_refused(name: str, extents: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec_of(name, "forward", dims_of(name, *extents), float32)


@pytest.mark.parametrize(
    ("name", "extents", "offsets", "named"),
    [
        ("batch_norm", (2, 8, 4, 4), {"y": 1}, "y must begin on 16 bytes"),
        ("batch_norm", (2, 8, 3, 3), {"y": 1}, "y and x must begin alike, modulo 8 elements"),
        ("batch_norm_nhwc", (2, 8, 4, 4), {"x": 1}, "x must begin on 16 bytes"),
        ("batch_norm_nhwc", (2, 8, 4, 4), {"bias": 1}, "bias must begin on 32 bytes"),
        ("instance_norm", (2, 8, 4, 4), {"x": 4}, "x must begin on 16 bytes"),
    ],
)
def test_operands_that_no_plan_cuts_alike_are_refused_by_name(
    name: str, extents: tuple[int, ...], offsets: Mapping[str, int], named: str
) -> None:
    spec = spec_of(name, "forward", dims_of(name, *extents), bfloat16)
    inputs = make_inputs(spec.operation, "forward", spec.dims, bfloat16, seed=1)
    with pytest.raises(ValueError, match=named):
        bound(spec, Planner(Libraries()), inputs, offsets)


def ends(geometry: Geometry) -> Sequence[int]:
    """The first and the last block of a large grid; all of one that merges shares."""
    blocks = int(geometry.blocks)
    return range(blocks) if geometry.threads > 256 else (0, blocks - 1)


@pytest.mark.parametrize(
    "name", ["batch_norm", "batch_norm_nhwc", "batch_norm_relu", "batch_norm_add_relu"]
)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_training_is_right_beyond_two_billion_elements(
    libraries: Libraries, name: str, direction: DirectionName
) -> None:
    """Two shares run, first and last; all that they hold beside the last images is zero."""
    channels, pixels = 8, 1 << 12
    images = 2**31 // (channels * pixels) + 8
    spec = spec_of(name, direction, dims_of(name, images, channels, 64, 64), bfloat16)
    toolchain = EmulatorToolchain(libraries, only_blocks=ends, count=False)
    prepared = prepare(spec, toolchain)
    tensors = (*spec.io.operands.values(), *prepared.scratch)
    buffers = {t.name: sparse(t.shape, t.dtype.torch_dtype) for t in tensors}
    for given in ("weight", "rstd", "running_var"):
        if given in buffers:
            buffers[given].fill_(1)
    if direction == "backward" and "mask" in buffers:
        buffers["mask"][-1] = 0xFF
    buffers["x"][-1] = 1 + torch.rand(buffers["x"].shape[1:]).bfloat16()
    if direction == "backward":
        buffers["dy"][-1] = torch.randn(buffers["dy"].shape[1:]).bfloat16()
    prepared.bind(buffers, None)()
    last = name.endswith("_nhwc")
    channel = (..., -1) if last else (-1,)
    x = buffers["x"][-1][channel].double()
    if direction == "forward":
        mean, rstd = buffers["mean"][-1].double(), buffers["rstd"][-1].double()
        assert mean > 0 and rstd < (1e-5) ** -0.5
        exact = (x - mean) * rstd
        exact = exact.clamp(min=0) if name.endswith("relu") else exact
        got = buffers["y"][-1][channel].double()
    else:
        dy = buffers["dy"][-1][channel].double()
        total, along = buffers["dbias"][-1].double(), buffers["dweight"][-1].double()
        torch.testing.assert_close(total, dy.sum(), rtol=1e-3, atol=1e-2)
        torch.testing.assert_close(along, (dy * x).sum(), rtol=1e-3, atol=1e-2)
        exact, got = dy, buffers["dx"][-1][channel].double()  # sums of so many are nothing
    written = got != 0
    assert written.any()
    torch.testing.assert_close(got[written], exact[written], rtol=2**-6, atol=1e-3)


@pytest.mark.parametrize("name", ["group_norm", "instance_norm"])
def test_gradients_of_groups_are_right_beyond_two_billion_elements(
    libraries: Libraries, name: str
) -> None:
    """Those blocks run that have the planes of the last image; all images before it are zero."""
    channels, pixels = 8, 1 << 12
    images = 2**31 // (channels * pixels) + 8
    spec = spec_of(name, "backward", dims_of(name, images, channels, 64, 64), bfloat16)
    plan = cuda_channel_group.plane_plan(pixels, 2, reference_target("sm_90"))
    assert plan.threads // plan.lanes == channels  # a block takes one image at a time

    def with_the_last_image(geometry: Geometry) -> Sequence[int]:
        blocks = int(geometry.blocks)
        some = sorted({0, blocks - 1, (images - 1) % blocks})
        return range(blocks) if geometry.threads > 256 else some

    toolchain = EmulatorToolchain(libraries, only_blocks=with_the_last_image, count=False)
    prepared = prepare(spec, toolchain)
    tensors = (*spec.io.operands.values(), *prepared.scratch)
    buffers = {t.name: sparse(t.shape, t.dtype.torch_dtype) for t in tensors}
    dims = dims_of(name, 1, channels, 64, 64)
    inputs = make_inputs(spec.operation, "backward", dims, bfloat16, seed=3)
    for tensor in spec.io.reads:
        buffers[tensor.name][-len(inputs[tensor.name]) :] = inputs[tensor.name]
    prepared.bind(buffers, None)()
    alone = spec.operation.directions(dims, bfloat16).get("backward")
    assert alone is not None
    exact = evaluate(alone, inputs)
    for tensor in alone.writes:
        found = compare(
            tensor, buffers[tensor.name][-len(exact[tensor.name]) :], exact[tensor.name]
        )
        assert found.ok, found


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [float32, float16], ids=str)
def test_every_shape_has_a_launch_the_device_can_run(arch: str, dtype: DType) -> None:
    target, item = reference_target(arch), dtype.bits // 8
    for channels in (1, 3, 64, 2048, 70_000):
        for pixels in (1, 49, 3136, 3135, 2**20, 2**31 - 1):
            for images in (1, 32, 65_536):
                first = [
                    cuda_channel.first_plan(images, channels, pixels, item, target, streams=n)
                    for n in (1, 2)
                ]
                last = [
                    cuda_channel.last_plan(images * pixels, channels, item, target, streams=n)
                    for n in (1, 2)
                ]
                for plan in (*first, *last):
                    assert 1 <= plan.blocks <= MAX_BLOCKS and plan.blocks % plan.shares == 0
                for plan in first:
                    *_, vectors, each = map(int, plan.extents)
                    assert plan.shares * each >= images * vectors > (plan.shares - 1) * each
                for plan in last:
                    rows, _, lanes, each = map(int, plan.extents)
                    assert 1 <= lanes <= 256
                    assert plan.shares * each >= rows > (plan.shares - 1) * each
            plane = cuda_channel_group.plane_plan(pixels, item, target)
            assert plane.threads % plane.lanes == 0
            assert plane.blocks * plane.threads <= target.threads_per_multiprocessor
