"""Softmax, layer_norm and l2_norm: values that break them, and launches that no shape may break."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf, nan

import pytest
import torch
from membound.kernels.backends import cuda_column_sums, cuda_layer_norm, cuda_row_map, cuda_rows
from membound.kernels.backends.cuda import MAX_BLOCKS
from membound.kernels.dtypes import FLOATS, DType, bfloat16, float16, float32
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.operation import DirectionName
from membound.kernels.spec import CannotPrepare, Spec
from membound.kernels.target import ARCHITECTURES, reference_target
from membound.tests.emulator.run import CATALOGUE, bound, prepare, run_cuda, spec_of
from membound.tests.emulator.toolchain import EmulatorToolchain, Libraries, Planner

COLUMNS = (1, 2, 5, 31, 64, 768, 3000, 4096, 4097, 8192, 16384, 16385, 70_000, 131_071, 262_144)
ROWS = (1, 65_535, 65_536, 131_072, 2**31)
WIDTHS = (1, 3, 31, 33, 1023, 1025)
SOFTMAXES = ("softmax", "log_softmax", "scaled_masked_softmax", "causal_softmax")


def dims_of(operation: str, x: torch.Tensor) -> dict[str, int]:
    return dict(zip(CATALOGUE.operations[operation].dims, x.shape, strict=False))


def planned() -> Iterator[tuple[str, dict[str, int], DType]]:
    """Every shape below that is not alone in its plan: one compilation per source."""
    for width in WIDTHS:
        for name in ("softmax", "log_softmax"):
            yield name, {"rows": 4, "columns": width}, float32
    yield "scaled_masked_softmax", {"rows": 4, "columns": 33}, float32
    yield "causal_softmax", {"matrices": 1, "columns": 4}, float32
    for columns in (2, 4096, 8192):
        yield "layer_norm", {"rows": 2, "columns": columns}, float32


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    libraries = Libraries()
    for name, dims, dtype in planned():
        spec = spec_of(name, "forward", dims, dtype)
        prepare(spec, Planner(libraries))
    libraries.compile()
    return libraries


def by_torch(spec: Spec, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What its torch implementation writes, on the CPU."""
    form = next(i for i in CATALOGUE.implementations(spec.operation) if i.label == "torch")
    returned = form.prepare(spec).bind(dict(inputs), None)()
    assert returned is not None
    return dict(zip([t.name for t in spec.io.writes], returned, strict=True))


def every(
    libraries: Libraries,
    name: str,
    inputs: Mapping[str, torch.Tensor],
    direction: DirectionName = "forward",
) -> Iterator[tuple[str, torch.Tensor]]:
    """(who, its first output): the reference, the emulated kernel and torch."""
    first = next(iter(inputs.values()))
    dtype = next(d for d in FLOATS if d.torch_dtype == first.dtype)
    spec = spec_of(name, direction, dims_of(name, first), dtype)
    output = spec.io.writes[0].name
    yield "reference", evaluate(spec.io, inputs)[output]
    yield "cuda", run_cuda(libraries, spec, inputs)[output]
    yield "torch", by_torch(spec, inputs)[output]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([-inf, -inf, -inf], [nan, nan, nan]),
        ([1.0, nan, 2.0], [nan, nan, nan]),
        ([1.0, inf, 2.0], [nan, nan, nan]),
        ([-inf, 0.0, 0.0], [0.0, 0.5, 0.5]),
        ([1e30, -1e30, 1e30], [0.5, 0.0, 0.5]),
        ([-1e4, -1e4, -1e4], [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_rows_of_softmax_that_are_not_numbers(
    libraries: Libraries, row: list[float], expected: list[float]
) -> None:
    wanted = torch.tensor([expected], dtype=torch.float64)
    logarithm = torch.log_softmax(torch.tensor([row]).double(), -1)
    for name, exact in (("softmax", wanted), ("log_softmax", logarithm)):
        for who, y in every(libraries, name, {"x": torch.tensor([row])}):
            torch.testing.assert_close(
                y.double(), exact, equal_nan=True, rtol=1e-6, atol=0, msg=who
            )


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_narrower_than_their_threads_have_no_zeros_beside_them(
    libraries: Libraries, width: int
) -> None:
    """All negative: a 0 from beyond the row would be the maximum, and would be summed."""
    x = -50 - torch.rand(4, width)
    ones = torch.ones(4).double()
    for who, y in every(libraries, "softmax", {"x": x}):
        torch.testing.assert_close(y.double().sum(-1), ones, rtol=1e-5, atol=0, msg=who)
    for who, y in every(libraries, "log_softmax", {"x": x}):
        torch.testing.assert_close(y.double().exp().sum(-1), ones, rtol=1e-5, atol=0, msg=who)


def test_a_mask_of_one_takes_part_and_a_row_without_any_is_nan(libraries: Libraries) -> None:
    x = torch.full((3, 33), 800.0)
    mask = torch.zeros(3, 33, dtype=torch.uint8)
    mask[0, [2, 32]], mask[1] = 1, 1
    for who, y in every(libraries, "scaled_masked_softmax", {"x": x, "mask": mask}):
        assert y[0].tolist() == [0.5 * (i in {2, 32}) for i in range(33)], who
        assert y[1].tolist() == pytest.approx([1 / 33] * 33), who
        assert y[2].isnan().all(), who


def test_a_mask_agrees_with_that_of_attention() -> None:
    """Attention of one head whose values are the unit matrix writes its weights."""
    dims = {"rows": 16, "columns": 16}
    operation = CATALOGUE.operations["scaled_masked_softmax"]
    inputs = make_inputs(operation, "forward", dims, float32, seed=2)
    q, k = torch.randn(2, 16, 64).double()
    mask = inputs["mask"]
    y = evaluate(operation.directions(dims, float32).forward, {"x": q @ k.T, "mask": mask})["y"]
    attend = torch.nn.functional.scaled_dot_product_attention
    weights = attend(q[None], k[None], torch.eye(16).double()[None], mask.bool())[0]
    torch.testing.assert_close(y, weights)


def test_causal_softmax_never_reads_above_the_diagonal(libraries: Libraries) -> None:
    x = torch.where(torch.ones(4, 4).tril() > 0, torch.zeros(4, 4), nan)[None]
    rows = [[1, 0, 0, 0], [1 / 2, 1 / 2, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [1 / 4] * 4]
    for who, y in every(libraries, "causal_softmax", {"x": x}):
        torch.testing.assert_close(y[0].double(), torch.tensor(rows).double(), msg=who)
    spec = spec_of("causal_softmax", "backward", {"matrices": 1, "columns": 4}, float32)
    y = torch.tensor(rows)[None]
    dy = torch.where(torch.ones(4, 4).tril() > 0, torch.randn(4, 4), nan)[None]
    dx = run_cuda(libraries, spec, {"dy": dy, "y": y})["dx"]
    exact = evaluate(spec.io, {"dy": dy, "y": y})["dx"]
    assert not exact.isnan().any()
    torch.testing.assert_close(dx.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", [4096, 4104])
def test_the_last_rows_of_a_long_causal_matrix(columns: int) -> None:
    """Two blocks of a grid that has one for every row."""
    dims = {"matrices": 2, "columns": columns}
    rows = (2, columns - 1, columns, 2 * columns - 1)
    toolchain = EmulatorToolchain(Libraries(), only_blocks=lambda _: rows, count=False)
    spec = spec_of("causal_softmax", "forward", dims, bfloat16)
    spec = replace(spec, target=replace(spec.target, multiprocessors=10_000))
    x = torch.randn(2, columns, columns).bfloat16()
    y = torch.zeros_like(x)
    prepare(spec, toolchain).bind({"x": x, "y": y}, None)()
    for row in rows:
        matrix, i = divmod(row, columns)
        exact = torch.softmax(x[matrix, i, : i + 1].double(), -1)
        torch.testing.assert_close(y[matrix, i, : i + 1].double(), exact, rtol=2**-8, atol=1e-9)
        assert not y[matrix, i, i + 1 :].any()


def normalized(
    libraries: Libraries, x: torch.Tensor, beta: float = 0.0
) -> Iterator[tuple[str, torch.Tensor]]:
    columns = x.shape[1]
    weight = torch.ones(columns, dtype=x.dtype)
    bias = torch.full((columns,), beta, dtype=x.dtype)
    return every(libraries, "layer_norm", {"x": x, "weight": weight, "bias": bias})


def test_the_variance_of_numbers_far_from_zero(libraries: Libraries) -> None:
    """In float32 E[x²] − E[x]² gives 0 for each of these."""
    torch.manual_seed(0)
    pair = torch.tensor([[4096.0, 4097.0]] * 2)
    for who, y in normalized(libraries, pair):
        expected = 0.5 / (0.25 + 1e-5) ** 0.5
        assert y[0].tolist() == pytest.approx([-expected, expected], rel=1e-6), who
    crowd = 4096 + 0.1 * torch.randn(2, 4096)
    far = 1e4 + torch.randn(2, 4096)
    for x in (crowd, far):
        (_, exact), *found = normalized(libraries, x)
        for who, y in found:
            torch.testing.assert_close(y.double(), exact, rtol=1e-3, atol=1e-3, msg=who)


def test_the_variance_of_bfloat16_is_formed_in_float32(libraries: Libraries) -> None:
    x = torch.tensor([[5.0, 5.125] * 32] * 2, dtype=torch.bfloat16)
    expected = 0.0625 / (0.0625**2 + 1e-5) ** 0.5
    for who, y in normalized(libraries, x):
        torch.testing.assert_close(y[0, 1].double().item(), expected, rtol=2**-8, atol=0, msg=who)


@pytest.mark.parametrize("columns", [2, 3000, 4097, 20_001])
def test_constant_rows_give_exactly_beta(libraries: Libraries, columns: int) -> None:
    x = torch.tensor([[0.1], [-1e4 / 3], [0.0]]).expand(3, columns).contiguous()
    spec = spec_of("layer_norm", "forward", dims_of("layer_norm", x), float32)
    inputs = {"x": x, "weight": torch.full((columns,), 3.0), "bias": torch.full((columns,), 0.7)}
    y = run_cuda(libraries, spec, inputs)["y"]
    assert torch.equal(y, torch.full_like(y, 0.7))


def test_squares_that_overflow_half_precision(libraries: Libraries) -> None:
    x = torch.tensor([[300.0] * 64 + [-300.0] * 64], dtype=torch.float16)
    for who, y in normalized(libraries, x):
        assert torch.equal(y.double(), torch.sign(x).double()) or who == "reference", who
    for who, y in every(libraries, "l2_norm", {"x": x}):
        torch.testing.assert_close(
            y.double(), torch.sign(x).double() * 128**-0.5, rtol=1e-3, atol=0
        )
        assert y.isfinite().all(), who


def test_more_columns_than_half_precision_counts(libraries: Libraries) -> None:
    x = torch.tensor([[1.0, 3.0]], dtype=torch.float16).repeat(1, 35_000)
    for who, y in normalized(libraries, x):
        torch.testing.assert_close(y.double(), x.double() - 2, rtol=1e-3, atol=0, msg=who)


def test_float32_overflows_where_its_squares_do(libraries: Libraries) -> None:
    """Documented, not right: a variance of 1e60 is infinite and its reciprocal root 0."""
    x = torch.tensor([[1e30, -1e30]])
    spec = spec_of("layer_norm", "forward", dims_of("layer_norm", x), float32)
    inputs = {"x": x, "weight": torch.ones(2), "bias": torch.zeros(2)}
    assert torch.equal(run_cuda(libraries, spec, inputs)["y"], x * 0)
    assert evaluate(spec.io, inputs)["y"][0].tolist() == [1, -1]


def test_rows_shorter_than_eps_are_scaled_by_its_reciprocal(libraries: Libraries) -> None:
    x = torch.tensor([[3e-14, 4e-14], [0.0, 0.0], [3.0, -4.0]])
    expected = torch.tensor([[0.03, 0.04], [0.0, 0.0], [0.6, -0.8]]).double()
    for who, y in every(libraries, "l2_norm", {"x": x}):
        torch.testing.assert_close(y.double(), expected, rtol=1e-6, atol=0, msg=who)
    dy = torch.tensor([[1.0, -2.0]] * 3)
    norm = torch.linalg.vector_norm(x, dim=-1)
    inputs = {"dy": dy, "x": x, "norm": norm}
    exact = torch.tensor([[1e12, -2e12], [1e12, -2e12], [-0.08, -0.06]]).double()
    exact[2] = (dy[2] - x[2] / 5 * (x[2] / 5 @ dy[2])) / 5
    for who, dx in every(libraries, "l2_norm", inputs, "backward"):
        torch.testing.assert_close(dx.double(), exact, rtol=1e-5, atol=1e-6, msg=who)


def test_column_sums_do_not_depend_on_the_order_of_blocks(libraries: Libraries) -> None:
    dims = {"rows": 40, "columns": 128}
    spec = spec_of("layer_norm", "backward", dims, float32)
    inputs = make_inputs(spec.operation, "backward", dims, float32, seed=1)
    first, *others = (run_cuda(libraries, spec, inputs, seed) for seed in (1, 2, 3))
    for other in others:
        assert torch.equal(first["dweight"], other["dweight"])
        assert torch.equal(first["dbias"], other["dbias"])


@pytest.mark.parametrize(
    ("name", "columns", "offsets", "named"),
    [
        ("layer_norm", 128, {"bias": 1}, "bias must begin on 16 bytes"),
        ("layer_norm", 33, {"bias": 1}, "bias and weight must begin alike"),
        ("scaled_masked_softmax", 128, {"mask": 4}, "mask must begin on 8 bytes"),
        ("scaled_masked_softmax", 33, {"mask": 1}, "mask and x must begin alike"),
        ("l2_norm", 128, {"y": 1}, "y must begin on 16 bytes"),
    ],
)
def test_operands_that_no_plan_cuts_alike_are_refused_by_name(
    name: str, columns: int, offsets: Mapping[str, int], named: str
) -> None:
    dims = {"rows": 3, "columns": columns}
    spec = spec_of(name, "forward", dims, bfloat16)
    inputs = make_inputs(spec.operation, "forward", dims, bfloat16, seed=1)
    with pytest.raises(ValueError, match=named):
        bound(spec, Planner(Libraries()), inputs, offsets)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_every_shape_has_a_launch_the_device_can_run(arch: str, dtype: DType) -> None:
    target = reference_target(arch)
    item = dtype.bits // 8
    for columns in COLUMNS:
        tiled, backward = cuda_layer_norm.backward_plan(columns, item, target)
        plans = [backward] + [
            cuda_row_map.map_plan(
                columns, item, target, streams=streams, parameters=parameters, unpacked=unpacked
            )[1]
            for streams, parameters, unpacked in (
                (1, 2, False),
                (1, 0, True),
                (1, 0, False),
                (2, 0, False),
            )
        ]
        for plan in plans:
            assert 1 <= plan.threads <= 1024 and plan.threads % 32 == 0
            assert plan.shared_bytes < target.shared_per_block
            assert plan.blocks * plan.threads <= target.threads_per_multiprocessor
            for rows in ROWS:
                assert 1 <= cuda_rows.grid(rows, plan, target) <= MAX_BLOCKS
        for rows in ROWS if tiled == "tiles" else ():
            tiles, shares = cuda_column_sums.tiling(rows, columns, item, backward, target)
            assert 1 <= shares <= rows and tiles * shares <= MAX_BLOCKS


def test_rows_go_from_registers_to_shared_memory_to_a_second_read() -> None:
    target = reference_target("sm_90")
    paths = [cuda_row_map.map_plan(n, 2, target, streams=1)[0] for n in (16384, 16392, 115_208)]
    assert paths == ["registers", "shared", "twice"]
    paths = [cuda_row_map.map_plan(n, 2, target, streams=2)[0] for n in (16384, 16392, 57_608)]
    assert paths == ["registers", "shared", "twice"]


@pytest.mark.parametrize("rows", [1, 4095, 4096, 2**31 - 1, 2**31, 2**40 + 17])
@pytest.mark.parametrize("columns", [1, 3, 4096, 4097, 262_144])
def test_the_row_of_a_matrix_is_found_by_a_multiplication(rows: int, columns: int) -> None:
    """As `columns_up_to_own` does it: exact while rows · columns stay below 2^64."""
    reciprocal = -(-(2**64) // columns) % 2**64
    own = rows - (rows * reciprocal >> 64) * columns + 1
    assert min(own, columns) == rows % columns + 1


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", ["layer_norm", "l2_norm", *SOFTMAXES])
def test_more_columns_than_an_int_holds_are_refused(name: str, direction: DirectionName) -> None:
    dims = dict.fromkeys(CATALOGUE.operations[name].dims, 1) | {"columns": 2**31}
    spec = spec_of(name, direction, dims, float16)
    with pytest.raises(CannotPrepare, match="fewer than 2\\^31 columns"):
        prepare(spec, Planner(Libraries()))
