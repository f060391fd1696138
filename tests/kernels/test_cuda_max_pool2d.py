"""Max-pooling in CUDA C++: NaN, -inf, ties, padding, overlap; launches that no shape may break."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from membound.kernels.backends.cuda import MAX_BLOCKS
from membound.kernels.backends.cuda_pool import Problem, plan_of, strip_bytes
from membound.kernels.dtypes import DType, bfloat16, float16, float32
from membound.kernels.operation import DIRECTIONS
from membound.kernels.pooling import max_pool2d as statement
from membound.kernels.spec import CannotPrepare
from membound.kernels.target import ARCHITECTURES, reference_target
from membound.tests.emulator.run import prepare, run_cuda, spec_of
from membound.tests.emulator.toolchain import Libraries, Planner

NAN, INF = float("nan"), float("inf")
DTYPES = {torch.float32: float32, torch.float16: float16, torch.bfloat16: bfloat16}


AGREEING = [
    ((1, 2, 17, 300), 3, 2, 1),  # wider than a warp has threads, and ragged
    ((1, 2, 20, 320), 3, 2, 1),  # strips that cross warps
    ((3, 5, 9, 8), 3, 2, 1),  # an odd height under strips
    ((2, 3, 9, 8), 2, 2, 0),  # a last row that no window has
    ((1, 1, 30, 31), 15, 1, 7),
    ((1, 2, 20, 20), 2, 3, 1),  # a stride that leaves elements out
    ((1, 2, 9, 40000), 3, 2, 0),  # rows of which a window does not fit in shared memory
]


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    """One compilation of every kernel below."""
    planned = Libraries()
    small = [((1, 1, n, n), 3, 2, 1, float32) for n in (5, 6, 8)]
    small += [((1, 1, n, n), 3, 2, 1, float16) for n in (5, 8)]
    small += [((1, 1, n, n), 2, 2, 0, dtype) for n in (2, 8) for dtype in DTYPES.values()]
    small += [((1, 1, 2, 8), 2, 2, 0, dtype) for dtype in DTYPES.values()]
    small += [((2, 3, 17, 48), 3, 2, 1, dtype) for dtype in (float16, bfloat16)]
    small += [((1, 1, 4, 4), 3, 1, 0, float32)]
    for shape, *window, dtype in [*small, *((*one, float32) for one in AGREEING)]:
        for direction in DIRECTIONS:
            dims = dims_of(torch.empty(shape), *window)
            prepare(spec_of("max_pool2d", direction, dims, dtype), Planner(planned))
    planned.compile()
    return planned


def dims_of(x: torch.Tensor, kernel: int, stride: int, padding: int) -> dict[str, int]:
    extents = dict(zip(("images", "channels", "height", "width"), x.shape, strict=True))
    return extents | {"kernel": kernel, "stride": stride, "padding": padding}


def pool(
    libraries: Libraries, x: torch.Tensor, kernel: int, stride: int, padding: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """y, and dx for a dy of ones, fed with the places that forward saved."""
    dims, dtype = dims_of(x, kernel, stride, padding), DTYPES[x.dtype]
    spec = spec_of("max_pool2d", "forward", dims, dtype)
    out = run_cuda(libraries, spec, {"x": x})
    back = spec_of("max_pool2d", "backward", dims, dtype)
    inputs = {"dy": torch.ones_like(out["y"]), "offset": out["offset"]}
    return out["y"], run_cuda(libraries, back, inputs)["dx"]


def image(rows: list[list[float]], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(rows, dtype=dtype)[None, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_windows_of_nan_alone(libraries: Libraries, dtype: torch.dtype) -> None:
    y, dx = pool(libraries, torch.full((1, 2, 8, 8), NAN, dtype=dtype), 2, 2, 0)
    assert y.isnan().all()
    assert dx.sum() == 32 and set(dx.flatten().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [8, 2])  # strips, and tiles
@pytest.mark.parametrize("where", range(4))
def test_nan_wins_and_takes_the_gradient(
    libraries: Libraries, width: int, where: int, dtype: torch.dtype
) -> None:
    values = [1.0, 3.0, INF]
    values.insert(where, NAN)
    x = image([values[:2] * (width // 2), values[2:] * (width // 2)], dtype)
    y, dx = pool(libraries, x, 2, 2, 0)
    assert y.isnan().all()
    assert torch.equal(dx, x.isnan().to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_pairs_of_windows_agree_with_pytorch(libraries: Libraries, dtype: torch.dtype) -> None:
    choices = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.0, 6e-8], dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    x = choices[torch.randint(0, len(choices), (2, 3, 17, 48), generator=generator)]
    y, dx = pool(libraries, x, 3, 2, 1)
    expected = torch.nn.functional.max_pool2d(x.requires_grad_(), 3, 2, 1)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    assert torch.equal(y.nan_to_num(nan=7.0), expected.detach().nan_to_num(nan=7.0))
    assert torch.equal(dx, gradient)


@pytest.mark.parametrize(
    ("size", "kernel", "padding"), [(8, 2, 0), (8, 3, 1), (6, 3, 1), (5, 3, 1)]
)
def test_infinite_windows_keep_a_place_inside(
    libraries: Libraries, size: int, kernel: int, padding: int
) -> None:
    x = torch.full((1, 1, size, size), -INF)
    y, dx = pool(libraries, x, kernel, 2, padding)
    expected = torch.nn.functional.max_pool2d(
        x.requires_grad_(), kernel, 2, padding, return_indices=False
    )
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    assert torch.equal(y, expected.detach())
    assert torch.equal(dx, gradient)


@pytest.mark.parametrize("size", [8, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_padding_never_wins(libraries: Libraries, size: int, dtype: torch.dtype) -> None:
    y, _ = pool(libraries, torch.full((1, 1, size, size), -5.0, dtype=dtype), 3, 2, 1)
    assert torch.equal(y, torch.full_like(y, -5.0))


def test_first_of_equals_takes_the_gradient(libraries: Libraries) -> None:
    _, dx = pool(libraries, image([[1, 2], [2, 2]]), 2, 2, 0)
    assert torch.equal(dx, image([[0, 1], [0, 0]]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_negative_zero_ties_with_zero(libraries: Libraries, dtype: torch.dtype) -> None:
    y, dx = pool(libraries, image([[-0.0, 0.0] * 4, [0.0, 0.0] * 4], dtype), 2, 2, 0)
    assert torch.equal(dx, image([[1, 0] * 4, [0, 0] * 4], dtype))
    assert y.signbit().all()


def test_overlapping_windows_accumulate(libraries: Libraries) -> None:
    _, dx = pool(libraries, torch.ones(1, 1, 4, 4), 3, 1, 0)
    expected = torch.zeros(1, 1, 4, 4)
    expected[0, 0, :2, :2] = 1
    assert torch.equal(dx, expected)
    peak = torch.zeros(1, 1, 8, 8)
    peak[0, 0, 3, 3] = 1  # in four windows of 3x3 stride 2
    _, dx = pool(libraries, peak, 3, 2, 1)
    assert dx[0, 0, 3, 3] == 4


@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), AGREEING)
def test_agrees_with_pytorch(
    libraries: Libraries, shape: tuple[int, ...], kernel: int, stride: int, padding: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 9, shape, generator=generator).float()  # small integers: many ties
    y, dx = pool(libraries, x, kernel, stride, padding)
    expected = torch.nn.functional.max_pool2d(x.requires_grad_(), kernel, stride, padding)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    assert torch.equal(y, expected.detach())
    assert torch.equal(dx, gradient)


def problem(
    forward: bool, planes: int, size: tuple[int, int], window: tuple[int, int, int], dtype: DType
) -> Problem:
    out_height, out_width = (statement.pooled(length, *window) for length in size)
    item = dtype.bits // 8
    return Problem(forward, planes, *size, out_height, out_width, *window, item, item + 1)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_every_shape_has_a_launch_the_device_can_run(arch: str, dtype: DType) -> None:
    target = reference_target(arch)
    sizes = ((1, 1), (7, 7), (112, 112), (55, 57), (1024, 2048), (16, 262_144), (262_144, 16))
    windows = ((1, 1, 0), (2, 2, 0), (3, 2, 1), (3, 1, 1), (15, 1, 7), (2, 5, 1))
    for size, window, planes, forward in product(
        sizes, windows, (1, 65_535, 65_536, 131_072), (True, False)
    ):
        if min(size) + 2 * window[2] < window[0]:
            continue
        one = problem(forward, planes, size, window, dtype)
        plan = plan_of(one, target)
        assert 1 <= plan.blocks <= MAX_BLOCKS
        assert plan.shared_bytes < target.shared_per_block
        assert 1 <= plan.lanes <= 32
        rows = one.rows if plan.strips else (one.out_height if forward else one.height)
        assert (plan.bands - 1) * plan.band_rows < rows <= plan.bands * plan.band_rows
        assert plan.together == 1 or plan.bands == 1


def test_more_blocks_than_a_grid_has_are_refused() -> None:
    one = problem(True, 2**31, (1024, 2049), (3, 2, 1), float32)
    with pytest.raises(CannotPrepare, match="exceed the largest grid"):
        plan_of(one, reference_target("sm_90"))


def test_planes_stay_whole_where_there_are_enough_of_them() -> None:
    target = reference_target("sm_90")
    many = problem(True, 65_536, (112, 112), (3, 2, 1), bfloat16)
    few = problem(True, 64, (112, 112), (3, 2, 1), bfloat16)
    assert plan_of(many, target).bands == 1
    assert plan_of(few, target).bands > 1


def test_strips_are_for_windows_that_tile_the_width() -> None:
    target = reference_target("sm_90")
    assert strip_bytes(problem(True, 1, (112, 112), (3, 2, 1), bfloat16), target) == 16
    assert strip_bytes(problem(True, 1, (28, 28), (2, 2, 0), bfloat16), target) == 8
    for size, window in (((55, 57), (3, 2, 1)), ((112, 112), (3, 1, 1)), ((112, 112), (5, 2, 2))):
        assert strip_bytes(problem(True, 1, size, window, bfloat16), target) is None
