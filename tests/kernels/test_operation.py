"""An operation knows its extents by name, its bytes and its text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from membound.kernels.dtypes import DTYPES, FLOATS, DType, bfloat16, float32, uint8
from membound.kernels.operation import Dim, Direction, Directions, Operation, Tensor, tensors
from membound.kernels.operation import operation as state
from membound.kernels.shapes import POOLED_IMAGES, ROWS, Shape, edge, layer, ragged, scaled, text


def rows_of(rows: int, columns: int, dtype: DType) -> Directions:
    x, y = tensors("x y", (rows, columns), dtype)
    total = Tensor("total", (columns,), float32)
    return Directions(Direction([x], [y, total], lambda x: (x, x.sum(0))))


@pytest.fixture
def double() -> Operation:
    return state(shapes=[edge(rows=2, columns=3)], dtypes=FLOATS)(rows_of)


def test_half_bytes_are_rounded_up_to_whole_bytes_and_never_to_none() -> None:
    fp4 = DType("float4_e2m1fn", 4)
    assert [fp4.nbytes(n) for n in (0, 1, 2, 3, 1 << 20)] == [0, 1, 1, 2, 1 << 19]
    scales = DType("float8_e8m0fnu", 8)  # one to 32 elements
    assert fp4.nbytes(4096) + scales.nbytes(4096 // 32) == 4096 * 17 // 32


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_a_dtype_agrees_with_torch(dtype: DType) -> None:
    import torch

    assert dtype.torch_dtype.itemsize * 8 == dtype.bits
    if dtype.numbers == 2:  # torch has a type for pairs of codes, and no arithmetic of it
        assert dtype.torch_dtype == torch.uint8
        return
    floating = dtype.torch_dtype.is_floating_point
    assert dtype.epsilon == (torch.finfo(dtype.torch_dtype).eps if floating else 0)


def test_rounding_is_to_nearest_even() -> None:
    import torch

    exact = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8], dtype=torch.float64)
    assert bfloat16.rounded(exact).tolist() == [1, 1 + 2.0**-6]


def test_an_extent_remembers_its_name_and_is_otherwise_a_number() -> None:
    rows = Dim(8, "rows")
    assert (rows.name, rows + 1, f"{rows}", hash(rows)) == ("rows", 9, "8", hash(8))
    assert Tensor("x", (rows, 4), float32).batched_over == "rows"
    assert Tensor("x", (rows * 2, 4), float32).batched_over is None
    assert Tensor("x", (), float32).batched_over is None


def test_a_direction_adds_up_its_tensors(double: Operation) -> None:
    forward = double.directions({"rows": 2, "columns": 3}, bfloat16).forward
    assert (forward.bytes_read, forward.bytes_written) == (12, 12 + 12)
    assert forward.traffic == 36
    assert list(forward.operands) == ["x", "y", "total"]
    assert forward.batch == "rows"
    assert replace(forward, separable=False).batch is None


def test_moved_counts_in_place_of_all_elements() -> None:
    part = Tensor("index", (10,), uint8, moved=4)
    assert (part.nbytes, part.traffic) == (10, 4)
    assert Tensor("sums", (10,), float32, moved=0).traffic == 0


def test_family_and_stem_come_from_the_file_and_the_summary_from_the_docstring(
    double: Operation,
) -> None:
    assert (double.family, double.stem, double.dims) == (
        "kernels",
        "test_operation",
        ("rows", "columns"),
    )
    assert double.summary.startswith("An operation knows")
    assert double.has("forward") and not double.has("backward")


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"rows": 2}, "takes rows, columns; got rows"),
        ({"rows": 2, "columns": 3, "depth": 1}, "takes rows, columns; got rows, columns, depth"),
        ({"rows": 2, "columns": -1}, "not negative"),
    ],
)
def test_extents_that_cannot_be_are_named(
    double: Operation, dims: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        double.directions(dims, float32)


def test_shapes_as_text() -> None:
    assert text({"rows": 8192, "columns": 4096}) == "8192x4096"
    pooled = {"images": 32, "channels": 64, "height": 112, "width": 112}
    assert text(pooled | {"kernel": 3, "stride": 2, "padding": 1}) == "32x64x112x112-k3s2p1"


def test_only_the_growing_dimension_grows() -> None:
    assert scaled("rows", rows=4, columns=5).grown(9).dims == {"rows": 9, "columns": 5}
    assert ragged("rows", rows=4, columns=5).grown(9).kind == "ragged"
    assert layer(rows=4, columns=5).grown(9).dims == {"rows": 4, "columns": 5}


@pytest.mark.parametrize("shapes", [ROWS, POOLED_IMAGES], ids=["rows", "images"])
def test_every_kind_of_shape_is_there(shapes: tuple[Shape, ...]) -> None:
    assert {shape.kind for shape in shapes} == {"scaled", "layer", "ragged", "edge"}
    assert any(shape.kind == "edge" and 0 in dict(shape.extents[:1]).values() for shape in shapes)
