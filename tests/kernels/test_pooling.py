"""Pooling in CUDA C++: values that break it, windows of every form, launches no shape may break.

max_pool2d on planes has a file of its own, test_cuda_max_pool2d.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import inf, nan
from typing import Any

import pytest
import torch
from membound.kernels.backends.cuda import MAX_BLOCKS
from membound.kernels.backends.cuda_pool import divider
from membound.kernels.backends.cuda_pool_adaptive import Evenly, even_plan
from membound.kernels.backends.cuda_pool_nhwc import vector_width
from membound.kernels.dtypes import DType, bfloat16, float32
from membound.kernels.spec import CannotPrepare
from membound.kernels.target import ARCHITECTURES, reference_target
from membound.tests.emulator.run import CATALOGUE, bound, prepare, run_cuda, spec_of
from membound.tests.emulator.toolchain import EmulatorToolchain, Libraries, Planner
from torch.nn import functional

Image = tuple[int, int, int, int]
Settings = Mapping[str, int]
Case = tuple[str, Image, Settings, DType]

WINDOWS: list[tuple[Image, tuple[int, int, int]]] = [
    ((1, 2, 8, 8), (2, 2, 0)),  # strips
    ((1, 2, 20, 320), (3, 2, 1)),  # strips that cross warps
    ((1, 1, 30, 31), (15, 1, 7)),
    ((1, 2, 20, 20), (2, 3, 1)),  # a stride that leaves elements out
    ((2, 3, 9, 11), (4, 1, 2)),  # cells of one element, in four windows a row
    ((1, 1, 300, 261), (3, 2, 1)),  # bands of tiles
    ((1, 2, 9, 40000), (3, 2, 0)),  # rows of which a window does not fit in shared memory
]
SHARED: list[tuple[Image, tuple[int, int]]] = [
    ((2, 3, 7, 5), (3, 4)),
    ((1, 2, 2, 3), (5, 4)),  # more windows than elements
    ((1, 1, 9, 40000), (4, 7)),
    ((1, 1, 300, 260), (7, 7)),  # bands
    ((1200, 8, 6, 7), (4, 3)),  # threads enough for a column each: rows are unrolled
    ((1200, 8, 3, 4), (7, 2)),
    ((300, 8, 9, 32), (4, 5)),  # rows of whole vectors
]
LAST: list[tuple[Image, tuple[int, int, int]]] = [
    ((2, 16, 9, 11), (3, 2, 1)),
    ((1, 6, 8, 8), (2, 2, 0)),
    ((1, 3, 16, 15), (15, 1, 7)),
    ((2, 8, 7, 9), (2, 3, 1)),
    ((1, 520, 4, 5), (3, 1, 1)),
]
FUSED: list[tuple[Image, tuple[int, int, int]]] = [
    ((3, 5, 9, 8), (3, 2, 1)),  # strips, an odd height
    ((1, 2, 64, 64), (3, 2, 1)),  # in bands
    ((2, 3, 5, 7), (3, 1, 0)),  # tiles
    ((2, 2, 20, 320), (3, 2, 1)),  # rows longer than a warp
    ((1, 2, 200, 131), (3, 2, 1)),  # bands of tiles
    ((1, 2, 9, 40000), (3, 2, 1)),
]


def window(kernel: int, stride: int, padding: int) -> dict[str, int]:
    return {"kernel": kernel, "stride": stride, "padding": padding}


def dims_of(shape: Image, settings: Settings) -> dict[str, int]:
    names = ("images", "channels", "height", "width")
    return dict(zip(names, shape, strict=True)) | dict(settings)


def cases() -> list[Case]:
    """Everything that is run below: one compilation per source."""
    found: list[Case] = [("avg_pool2d", s, window(*w), float32) for s, w in WINDOWS]
    found += [
        ("adaptive_avg_pool2d", s, {"out_height": h, "out_width": w}, float32)
        for s, (h, w) in SHARED
    ]
    found += [("lp_pool2d", (1, 1, n, n), {"kernel": 2, "stride": 2}, float32) for n in (4, 5)]
    found += [
        (name, s, window(*w), dtype)
        for name in ("avg_pool2d_nhwc", "max_pool2d_nhwc")
        for (s, w), dtype in product(LAST, (float32, bfloat16))
    ]
    found += [("bias_relu_max_pool2d", s, window(*w), float32) for s, w in FUSED]
    found += [("bias_relu_max_pool2d", (1, 1, 4, n), window(2, 2, 0), bfloat16) for n in (8, 2)]
    found += [("bias_relu_max_pool2d", (1, 1, 5, n), window(3, 2, 1), float32) for n in (8, 5)]
    return found


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    planned = Libraries()
    for name, shape, settings, dtype in cases():
        for direction in ("forward", "backward"):
            prepare(spec_of(name, direction, dims_of(shape, settings), dtype), Planner(planned))
    planned.compile()
    return planned


def both(
    libraries: Libraries, name: str, dims: Mapping[str, int], dtype: DType, **inputs: torch.Tensor
) -> dict[str, torch.Tensor]:
    """What forward gives, and backward for a dy of ones, fed with what forward left."""
    out = run_cuda(libraries, spec_of(name, "forward", dims, dtype), inputs)
    known = {**inputs, **out, "dy": torch.ones_like(out["y"])}
    return out | run_cuda(libraries, spec_of(name, "backward", dims, dtype), known)


def integers(shape: Image) -> torch.Tensor:
    """Small integers: sums are exact, and maxima have many ties."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(-4, 5, shape, generator=generator).float()


def by_autograd(
    f: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    leaves = [value.clone().requires_grad_() for value in inputs]
    y = f(*leaves)
    return y.detach(), torch.autograd.grad(y.sum(), leaves)


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(("shape", "settings"), WINDOWS)
def test_means_agree_with_pytorch(
    libraries: Libraries, shape: Image, settings: tuple[int, int, int]
) -> None:
    x = integers(shape)
    out = both(libraries, "avg_pool2d", dims_of(shape, window(*settings)), float32, x=x)
    y, (dx,) = by_autograd(lambda x: functional.avg_pool2d(x, *settings), x)
    close(out["y"], y)
    close(out["dx"], dx)


@pytest.mark.parametrize(("shape", "windows"), SHARED)
def test_windows_that_differ_agree_with_pytorch(
    libraries: Libraries, shape: Image, windows: tuple[int, int]
) -> None:
    x = integers(shape)
    dims = dims_of(shape, {"out_height": windows[0], "out_width": windows[1]})
    out = both(libraries, "adaptive_avg_pool2d", dims, float32, x=x)
    y, (dx,) = by_autograd(lambda x: functional.adaptive_avg_pool2d(x, windows), x)
    close(out["y"], y)
    close(out["dx"], dx)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "settings"), LAST)
@pytest.mark.parametrize("name", ["avg_pool2d_nhwc", "max_pool2d_nhwc"])
def test_channels_last_agree_with_pytorch(
    libraries: Libraries, name: str, shape: Image, settings: tuple[int, int, int], dtype: DType
) -> None:
    x = integers(shape).to(dtype.torch_dtype)
    pool = functional.avg_pool2d if "avg" in name else functional.max_pool2d
    y, (dx,) = by_autograd(lambda x: pool(x, *settings), x.float())
    last = x.permute(0, 2, 3, 1).contiguous()
    out = both(libraries, name, dims_of(shape, window(*settings)), dtype, x=last)
    for got, expected in ((out["y"], y), (out["dx"], dx)):
        rounded = expected.permute(0, 2, 3, 1).to(dtype.torch_dtype)
        torch.testing.assert_close(got, rounded, rtol=2 * dtype.epsilon, atol=2 * dtype.epsilon)


@pytest.mark.parametrize("value", [nan, -inf, -5.0, inf])
def test_channels_last_keep_what_all_of_a_window_is(libraries: Libraries, value: float) -> None:
    """NaN wins, -inf has a place inside, padding never wins: dx is torch's."""
    shape, settings = LAST[0]
    x = torch.full(shape, value)
    y, (dx,) = by_autograd(lambda x: functional.max_pool2d(x, *settings), x)
    dims = dims_of(shape, window(*settings))
    last = x.permute(0, 2, 3, 1).contiguous()
    out = both(libraries, "max_pool2d_nhwc", dims, float32, x=last)
    close(out["y"], y.permute(0, 2, 3, 1))
    close(out["dx"], dx.permute(0, 2, 3, 1))


def test_channels_last_give_the_first_of_equals_the_gradient(libraries: Libraries) -> None:
    shape, settings = LAST[1]
    x = torch.zeros(shape).permute(0, 2, 3, 1).contiguous()
    x[:, ::2, ::2] = -0.0  # equal to 0, and first
    out = both(libraries, "max_pool2d_nhwc", dims_of(shape, window(*settings)), float32, x=x)
    first = torch.zeros_like(x)
    first[:, ::2, ::2] = 1
    assert torch.equal(out["dx"], first)


def test_not_a_number_stays_in_its_windows(libraries: Libraries) -> None:
    shape, settings = WINDOWS[0]
    x = torch.ones(shape)
    x[0, 0, 3, 4], x[0, 1, 0, 0] = nan, inf
    out = both(libraries, "avg_pool2d", dims_of(shape, window(*settings)), float32, x=x)
    assert out["y"].isnan().nonzero().tolist() == [[0, 0, 1, 2]]
    assert out["y"].isinf().nonzero().tolist() == [[0, 1, 0, 0]]
    assert torch.equal(out["dx"], torch.full(shape, 0.25))


def test_padding_counts_in_a_mean(libraries: Libraries) -> None:
    shape, settings = WINDOWS[1]
    out = both(
        libraries, "avg_pool2d", dims_of(shape, window(*settings)), float32, x=torch.ones(shape)
    )
    assert out["y"][0, 0, 0, :2].tolist() == pytest.approx([4 / 9, 6 / 9])


@pytest.mark.parametrize("size", [4, 5])  # strips, and tiles
def test_roots_of_squares_as_pytorch(libraries: Libraries, size: int) -> None:
    """0 where all is 0 (-0.0 too), inf where a square overflows, NaN where one is."""
    dims = {"images": 1, "channels": 1, "height": size, "width": size, "kernel": 2, "stride": 2}
    x = torch.zeros(1, 1, size, size)
    x[0, 0, 0, 0] = -0.0
    x[0, 0, :2, 2:4] = torch.tensor([[-3.0, 0.0], [4.0, -0.0]])
    x[0, 0, 2:4, :2] = torch.tensor([[1e30, 1.0], [1.0, 1.0]])
    x[0, 0, 2:4, 2:4] = torch.tensor([[nan, 1.0], [1.0, 1.0]])
    out = both(libraries, "lp_pool2d", dims, float32, x=x)
    y, (dx,) = by_autograd(lambda x: functional.lp_pool2d(x, 2.0, 2, 2), x)
    close(out["y"], y)
    assert out["y"].flatten()[:3].tolist() == [0, 5, inf]
    close(out["dx"], dx)


def fused(
    x: torch.Tensor, bias: torch.Tensor, kernel: int, stride: int, padding: int
) -> torch.Tensor:
    h = torch.relu(x + bias[:, None, None])
    y: torch.Tensor = functional.max_pool2d(h, kernel, stride, padding)
    return y


@pytest.mark.parametrize(("shape", "settings"), FUSED)
def test_bias_relu_max_pool_agrees_with_pytorch(
    libraries: Libraries, shape: Image, settings: tuple[int, int, int]
) -> None:
    x, bias = integers(shape), torch.arange(-2.0, shape[1] - 2.0)
    dims = dims_of(shape, window(*settings))
    out = both(libraries, "bias_relu_max_pool2d", dims, float32, x=x, bias=bias)
    y, (dx, dbias) = by_autograd(lambda x, bias: fused(x, bias, *settings), x, bias)
    assert torch.equal(out["y"], y)
    assert torch.equal(out["dx"], dx)
    assert torch.equal(out["dbias"], dbias)
    assert torch.equal(out["offset"] == 255, y == 0)


@pytest.mark.parametrize("width", [8, 5])  # strips, and tiles
@pytest.mark.parametrize("bias", [0.0, inf, -inf, nan])
def test_no_bias_makes_padding_win(libraries: Libraries, width: int, bias: float) -> None:
    x = torch.full((1, 1, 5, width), -2.0)
    x[0, 0, 0, 0], x[0, 0, 4, width - 1] = nan, 3.0
    dims = dims_of((1, 1, 5, width), window(3, 2, 1))
    biases = torch.tensor([bias])
    out = both(libraries, "bias_relu_max_pool2d", dims, float32, x=x, bias=biases)
    y, (dx, dbias) = by_autograd(lambda x, bias: fused(x, bias, 3, 2, 1), x, biases)
    close(out["y"], y)
    close(out["dx"], dx)
    close(out["dbias"], dbias)


@pytest.mark.parametrize("width", [8, 2])
def test_sums_that_round_alike_are_ties(libraries: Libraries, width: int) -> None:
    """256 + 0.5 and 256 + 1 are 256 in bfloat16: the first of them takes the gradient."""
    x = torch.zeros(1, 1, 4, width, dtype=torch.bfloat16)
    x[..., ::2, ::2], x[..., 1::2, 1::2] = 0.5, 1.0
    bias = torch.tensor([256.0], dtype=torch.bfloat16)
    dims = dims_of((1, 1, 4, width), window(2, 2, 0))
    out = both(libraries, "bias_relu_max_pool2d", dims, bfloat16, x=x, bias=bias)
    assert set(out["y"].flatten().tolist()) == {256.0}
    assert torch.equal(out["dx"] == 1, x == 0.5)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("avg_pool2d", window(5, 1, 0), "window 5 exceeds the padded 4x4 image"),
        ("avg_pool2d", window(2, 1, 2), "padding <= kernel / 2"),
        ("avg_pool2d", window(0, 1, 0), "kernel >= 1"),
        ("avg_pool2d_nhwc", window(5, 1, 0), "window 5 exceeds the padded 4x4 image"),
        ("max_pool2d_nhwc", window(9, 1, 2), "window 9 exceeds the padded 4x4 image"),
        ("bias_relu_max_pool2d", window(2, 0, 0), "stride >= 1"),
        ("lp_pool2d", {"kernel": 5, "stride": 1}, "window 5 exceeds the padded 4x4 image"),
        ("adaptive_avg_pool2d", {"out_height": 0, "out_width": 2}, "images and outputs have pix"),
    ],
)
def test_windows_that_cannot_be_are_named(name: str, settings: Settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CATALOGUE.operations[name].directions(dims_of((1, 1, 4, 4), settings), float32)


@pytest.mark.parametrize("name", ["global_avg_pool", "channel_bias_add"])
def test_planes_have_pixels(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: images have pixels"):
        CATALOGUE.operations[name].directions(dims_of((1, 1, 0, 4), {}), float32)


def test_vectors_of_channels_that_begin_elsewhere_are_refused(libraries: Libraries) -> None:
    shape, settings = LAST[0]
    spec = spec_of("max_pool2d_nhwc", "forward", dims_of(shape, window(*settings)), float32)
    x = torch.zeros(2, 9, 11, 16)
    with pytest.raises(ValueError, match="x must begin on 16 bytes"):
        bound(spec, EmulatorToolchain(libraries), {"x": x}, {"x": 1})


def test_rows_of_whole_vectors_that_begin_elsewhere_are_refused(libraries: Libraries) -> None:
    shape, (out_height, out_width) = SHARED[-1]
    dims = dims_of(shape, {"out_height": out_height, "out_width": out_width})
    spec = spec_of("adaptive_avg_pool2d", "backward", dims, float32)
    dy = torch.zeros(*shape[:2], out_height, out_width)
    with pytest.raises(ValueError, match="dx must begin on 16 bytes"):
        bound(spec, EmulatorToolchain(libraries), {"dy": dy}, {"dx": 1})


@pytest.mark.parametrize(("name", "most"), [("avg_pool2d_nhwc", 1.4), ("max_pool2d_nhwc", 1.4)])
def test_windows_of_a_block_share_what_they_load(
    libraries: Libraries, name: str, most: float
) -> None:
    """3x3 stride 2 asks for 1.5 times the image, and for what bands share; most is in L1."""
    dims = dims_of((1, 64, 64, 64), window(3, 2, 1))
    spec = spec_of(name, "forward", dims, float32)
    toolchain = EmulatorToolchain(libraries)
    buffers, launch = bound(spec, toolchain, {"x": torch.zeros(1, 64, 64, 64)})
    launch()
    (one,) = toolchain.launches
    counted = one.traffic[buffers["x"].data_ptr()]
    assert 1.5 < counted.loaded / counted.unique_loaded <= 1.8
    assert counted.block_loaded / counted.unique_loaded <= most


def test_division_by_a_product_is_division() -> None:
    largest = 2**31 - 1
    for divisor in (1, 2, 3, 7, 57, 4096, 65_537, 2**30 + 1, largest):
        factor = int(divider(divisor))
        near = {k * divisor + d for k in (0, 1, largest // divisor) for d in (-1, 0, 1)}
        for n in filter(lambda n: 0 <= n <= largest, near | {largest}):
            assert (2 * n * factor) >> 64 == n // divisor


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_windows_that_differ_have_a_launch_the_device_can_run(arch: str) -> None:
    target = reference_target(arch)
    sizes = ((1, 1), (7, 7), (1024, 2048), (16, 262_144), (262_144, 16), (55, 57))
    for read, written, forward in product(sizes, sizes, (True, False)):
        one = Evenly(forward, 2048, read, written, 2)
        plan = even_plan(one, target)
        assert 1 <= plan.blocks <= MAX_BLOCKS
        assert plan.shared_bytes < target.shared_per_block
        rows = written[0]
        assert (plan.bands - 1) * plan.band_rows < rows <= plan.bands * plan.band_rows
        assert plan.bands == 1 or not plan.whole
        if plan.staged:
            kept = plan.together * most_staged(one, plan.band_rows) * read[1] * 2
            kept += plan.together * rows * written[1] * 2 * plan.gathered
            assert kept + 64 <= plan.shared_bytes


def most_staged(one: Evenly, band_rows: int) -> int:
    """Rows that the windows of the widest band take, counted window by window."""
    rows, read = one.written[0], one.read[0]
    spans = []
    for first in range(0, rows, band_rows):
        last = min(first + band_rows, rows) - 1
        spans.append(-(-(last + 1) * read // rows) - first * read // rows)
    return max(spans)


def test_windows_counted_beyond_31_bits_are_refused() -> None:
    dims = dims_of((1, 1, 60_000, 1), {"out_height": 60_000, "out_width": 1})
    spec: Any = spec_of("adaptive_avg_pool2d", "forward", dims, float32)
    with pytest.raises(CannotPrepare, match="in 31 bits"):
        prepare(spec, Planner(Libraries()))


@pytest.mark.parametrize(
    ("channels", "itemsize", "width"), [(64, 2, 16), (12, 2, 8), (6, 2, 4), (3, 2, 2), (3, 4, 4)]
)
def test_vectors_divide_the_channels(channels: int, itemsize: int, width: int) -> None:
    assert vector_width(channels, itemsize) == width
