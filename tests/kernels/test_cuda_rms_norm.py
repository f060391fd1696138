"""RMSNorm in CUDA C++: values that break norms, and launches that no shape may break."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from membound.kernels.backends import cuda_rms, cuda_rows
from membound.kernels.backends.cuda import MAX_BLOCKS
from membound.kernels.dtypes import DType, bfloat16, float16, float32
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.operation import DirectionName
from membound.kernels.spec import CannotPrepare
from membound.kernels.target import ARCHITECTURES, reference_target
from membound.tests.emulator.run import bound, prepare, run_cuda, spec_of
from membound.tests.emulator.toolchain import EmulatorToolchain, Libraries, Planner

COLUMNS = (1, 2, 5, 31, 64, 768, 3000, 4096, 4097, 8192, 16384, 16385, 70_000, 131_071, 262_144)
ROWS = (1, 65_535, 65_536, 131_072, 2**31)


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    """One compilation of every kernel below."""
    planned = Libraries()
    for columns, dtype in (
        *((128, dtype) for dtype in (float32, float16, bfloat16)),
        *((1, float32), (4, bfloat16), (33, bfloat16), (37, bfloat16)),
    ):
        prepare(
            spec_of("rms_norm", "forward", {"rows": 3, "columns": columns}, dtype), Planner(planned)
        )
    dims = {"rows": 3, "columns": 128}
    prepare(spec_of("rms_norm", "backward", dims, float32), Planner(planned))
    prepare(spec_of("add_rms_norm", "forward", dims, bfloat16), Planner(planned))
    planned.compile()
    return planned


def forward(libraries: Libraries, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    dtype = {torch.float32: float32, torch.float16: float16, torch.bfloat16: bfloat16}[x.dtype]
    dims = {"rows": x.shape[0], "columns": x.shape[1]}
    spec = spec_of("rms_norm", "forward", dims, dtype)
    return run_cuda(libraries, spec, {"x": x, "weight": weight})["y"]


def test_squares_are_formed_in_float32(libraries: Libraries) -> None:
    x = torch.tensor([[300.0] * 64 + [-300.0] * 64] * 2, dtype=torch.float16)  # 300² is inf there
    y = forward(libraries, x, torch.ones(128, dtype=torch.float16))
    assert torch.equal(y, x / 300)


def test_float32_overflows_where_its_squares_do(libraries: Libraries) -> None:
    """Documented, not right: the mean of 1e60 is infinite, its reciprocal root 0, and so is y."""
    x = torch.tensor([[1e30, -1e30] * 64], dtype=torch.float32)
    assert torch.equal(forward(libraries, x, torch.ones(128)), x * 0)


def test_constant_rows_and_rows_of_zeros(libraries: Libraries) -> None:
    x = torch.tensor([[0.0] * 128, [5.0] * 128], dtype=torch.float32)
    y = forward(libraries, x, torch.full((128,), 2.0))
    assert torch.equal(y[0], torch.zeros(128))
    torch.testing.assert_close(y[1], torch.full((128,), 2.0), rtol=1e-6, atol=0)


def test_one_column(libraries: Libraries) -> None:
    x = torch.tensor([[3.0], [-4.0], [0.0]], dtype=torch.float32)
    y = forward(libraries, x, torch.tensor([1.5]))
    torch.testing.assert_close(y, torch.tensor([[1.5], [-1.5], [0.0]]), rtol=1e-6, atol=0)


def test_eps_is_under_the_root_and_is_the_stated_one(libraries: Libraries) -> None:
    x = torch.full((2, 128), 0.01, dtype=torch.bfloat16)
    y = forward(libraries, x, torch.ones(128, dtype=torch.bfloat16))
    value = x[0, 0].double()
    expected = value / (value**2 + 1e-6).sqrt()  # 0.9950; eps outside would give 0.9999
    assert torch.equal(y, torch.full_like(y, expected.item()))


def test_product_with_the_weight_is_rounded_once(libraries: Libraries) -> None:
    x = torch.tensor([[0.1259765625, -0.1318359375, 0.640625, 0.10498046875]], dtype=torch.bfloat16)
    weight = torch.tensor([-0.53515625, 0.361328125, 1.3046875, 0.9453125], dtype=torch.bfloat16)
    expected = torch.tensor([[-0.2001953125, -0.1416015625, 2.484375, 0.294921875]])
    assert torch.equal(forward(libraries, x, weight).float(), expected)


def test_the_norm_is_of_the_sum_as_it_is_stored(libraries: Libraries) -> None:
    dims = {"rows": 3, "columns": 128}
    spec = spec_of("add_rms_norm", "forward", dims, bfloat16)
    inputs = make_inputs(spec.operation, "forward", dims, bfloat16, seed=1)
    got = run_cuda(libraries, spec, inputs)
    assert torch.equal(got["h"], inputs["x"] + inputs["residual"])
    alone = forward(libraries, got["h"], inputs["weight"])
    assert torch.equal(got["y"], alone)


def test_column_sums_do_not_depend_on_the_order_of_blocks(libraries: Libraries) -> None:
    dims = {"rows": 40, "columns": 128}
    spec = spec_of("rms_norm", "backward", dims, float32)
    inputs = make_inputs(spec.operation, "backward", dims, float32, seed=1)
    sums = [run_cuda(libraries, spec, inputs, seed)["dweight"] for seed in (1, 2, 3)]
    assert torch.equal(sums[0], sums[1]) and torch.equal(sums[0], sums[2])


@pytest.mark.parametrize(
    ("offsets", "named"),
    [({"x": 1}, "x must begin on 16 bytes"), ({"weight": 1}, "weight must begin on 16 bytes")],
)
def test_slices_of_aligned_rows_are_refused_by_name(
    libraries: Libraries, offsets: Mapping[str, int], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        _bind_at(libraries, {"rows": 3, "columns": 128}, offsets)


def test_rows_that_begin_in_different_places_are_refused(libraries: Libraries) -> None:
    with pytest.raises(ValueError, match="y and x must begin alike"):
        _bind_at(libraries, {"rows": 3, "columns": 33}, {"y": 1})


def _bind_at(libraries: Libraries, dims: Mapping[str, int], offsets: Mapping[str, int]) -> None:
    spec = spec_of("rms_norm", "forward", dims, bfloat16)
    inputs = make_inputs(spec.operation, "forward", dims, bfloat16, seed=1)
    bound(spec, EmulatorToolchain(libraries), inputs, offsets)


def test_weight_out_of_step_with_ragged_rows(libraries: Libraries) -> None:
    dims = {"rows": 9, "columns": 37}
    spec = spec_of("rms_norm", "forward", dims, bfloat16)
    inputs = make_inputs(spec.operation, "forward", dims, bfloat16, seed=1)
    exact = evaluate(spec.io, inputs)["y"]
    for shift in range(8):
        buffers, launch = bound(spec, EmulatorToolchain(libraries), inputs, {"weight": shift})
        launch()
        torch.testing.assert_close(buffers["y"].double(), exact, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_every_shape_has_a_launch_the_device_can_run(arch: str, dtype: DType) -> None:
    target = reference_target(arch)
    item = dtype.bits // 8
    for columns in COLUMNS:
        for residual in (False, True):
            _, forward_plan = cuda_rms.forward_plan(columns, item, target, residual=residual)
            path, backward_plan = cuda_rms.backward_plan(columns, item, target, residual=residual)
            for plan in (forward_plan, backward_plan):
                assert 1 <= plan.threads <= 1024 and plan.threads % 32 == 0
                assert plan.shared_bytes < target.shared_per_block
                assert plan.blocks * plan.threads <= target.threads_per_multiprocessor
                for rows in ROWS:
                    assert 1 <= cuda_rows.grid(rows, plan, target) <= MAX_BLOCKS
            for rows in ROWS if path == "tiles" else ():
                tiles, shares = cuda_rms.tiling(rows, columns, item, backward_plan, target)
                assert 1 <= shares <= rows and tiles * shares <= MAX_BLOCKS


def test_a_plan_that_is_too_large_does_not_pass() -> None:
    """The check above sees what it looks for: a row of 2^20 bytes does not fit shared memory."""
    target = reference_target("sm_90")
    path, plan = cuda_rms.forward_plan(2**19, 2, target, residual=False)
    assert path == "twice" and plan.shared_bytes == 0
    lanes = cuda_rows.lanes_and_vectors(2**19 // 8, 16)
    assert lanes is None


def test_blocks_of_a_grid_differ_by_one_row_at_most() -> None:
    target = reference_target("sm_90")
    _, plan = cuda_rms.forward_plan(4096, 2, target, residual=False)
    for rows in (1, 100, 659, 660, 661, 8192, 131_072):
        blocks = cuda_rows.grid(rows, plan, target)
        most = -(-rows // blocks)
        assert most - rows // blocks <= 1
        assert blocks <= target.multiprocessors * plan.blocks


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_more_columns_than_an_int_holds_are_refused(direction: DirectionName) -> None:
    spec = spec_of("rms_norm", direction, {"rows": 1, "columns": 2**31}, bfloat16)
    with pytest.raises(CannotPrepare, match="fewer than 2\\^31 columns"):
        prepare(spec, Planner(Libraries()))
