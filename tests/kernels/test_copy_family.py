"""Casts, transposition, strided and gathered reads: values, whole tiles, and large indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
import torch
from membound.kernels.backends.cuda import MAX_BLOCKS
from membound.kernels.discovery import Catalogue
from membound.kernels.dtypes import DTYPES, DType, bfloat16, float16, float32
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.operation import Direction
from membound.kernels.spec import CannotPrepare, Prepared
from membound.kernels.target import reference_target
from membound.tests.emulator.cases import blank, place, sparse
from membound.tests.emulator.toolchain import EmulatorToolchain, Libraries, Planner
from membound.tests.kernels.test_emulated_large import last_block

CASTS = [
    ("cast_to_float32", float16),
    ("cast_to_float32", bfloat16),
    ("cast_to_float16", float32),
    ("cast_to_bfloat16", float32),
]
TILES: list[tuple[str, dict[str, int]]] = [
    ("transpose", {"rows": 128, "columns": 192}),
    ("nchw_to_nhwc", {"images": 2, "channels": 64, "height": 8, "width": 16}),
    ("nhwc_to_nchw", {"images": 2, "channels": 64, "height": 8, "width": 16}),
]
ROW = {"rows": 1, "columns": 4096}


def prepared(
    catalogue: Catalogue,
    spec_of: Any,
    name: str,
    dims: Mapping[str, int],
    dtype: DType,
    toolchain: Any,
    arch: str = "sm_90",
) -> tuple[Direction, Prepared]:
    operation = catalogue.operations[name]
    spec = spec_of(operation, "forward", dims, dtype)
    form = catalogue.default(name, "cuda")
    assert form is not None
    spec = replace(spec, target=reference_target(arch), toolchain=toolchain)
    return spec.io, form.prepare(spec)


@pytest.fixture(scope="module")
def libraries(catalogue: Catalogue, spec_of: Any) -> Libraries:
    planned = Libraries()
    plan = Planner(planned)
    for name, source in CASTS:
        for arch in ("sm_90", "sm_121"):
            prepared(catalogue, spec_of, name, ROW, source, plan, arch)
    for name, dims in TILES:
        for dtype in (float32, bfloat16):
            prepared(catalogue, spec_of, name, dims, dtype, plan)
    for name in ("gather_int32", "gather_int64", "strided_read_8"):
        prepared(catalogue, spec_of, name, ROW, bfloat16, plan)
    planned.compile()
    return planned


@pytest.mark.parametrize("arch", ["sm_90", "sm_121"])
@pytest.mark.parametrize(("name", "source"), CASTS)
def test_casts_round_to_nearest_even_and_keep_nan(
    catalogue: Catalogue, spec_of: Any, libraries: Libraries, name: str, source: DType, arch: str
) -> None:
    special = [
        *(0.0, -0.0, nan, inf, -inf, 65504.0, 65519.9, 65520.0, -1e30, 3.4e38, 1e-40, -6e-8, 3e-8),
        *(1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8),  # ties
    ]
    x = torch.randn(1, 4096)
    x[0, : len(special)] = torch.tensor(special)
    x = x.to(source.torch_dtype)
    toolchain = EmulatorToolchain(libraries)
    io, made = prepared(catalogue, spec_of, name, ROW, source, toolchain, arch)
    (out,) = io.writes
    tensors = {"x": place(io.reads[0], x), "y": blank(out)}
    made.bind(tensors, None)()
    expected = x.to(out.dtype.torch_dtype)
    y = tensors["y"]
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y[~y.isnan()], expected[~y.isnan()])
    assert torch.equal(y.signbit()[~y.isnan()], expected.signbit()[~y.isnan()])
    for moved in toolchain.launches[0].traffic.values():
        assert moved.load_sectors == moved.load_ideal and moved.store_sectors == moved.store_ideal


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize(("name", "dims"), TILES)
def test_whole_tiles_touch_no_sector_twice(
    catalogue: Catalogue,
    spec_of: Any,
    libraries: Libraries,
    name: str,
    dims: dict[str, int],
    dtype: DType,
) -> None:
    toolchain = EmulatorToolchain(libraries)
    io, made = prepared(catalogue, spec_of, name, dims, dtype, toolchain)
    x = make_inputs(catalogue.operations[name], "forward", dims, dtype, seed=1)["x"]
    tensors = {"x": place(io.reads[0], x), "y": blank(io.writes[0])}
    made.bind(tensors, None)()
    assert torch.equal(tensors["y"].double(), evaluate(io, {"x": x})["y"])
    (launch,) = toolchain.launches
    for moved in launch.traffic.values():
        whole = x.numel() * x.element_size()
        assert moved.loaded + moved.stored == whole
        assert moved.load_sectors + moved.store_sectors == whole // 32


@pytest.mark.parametrize("side", ["x", "y"])
def test_a_side_that_is_not_aligned_leaves_the_other_its_vectors(
    catalogue: Catalogue, spec_of: Any, libraries: Libraries, side: str
) -> None:
    name, dims = TILES[0]
    toolchain = EmulatorToolchain(libraries)
    io, made = prepared(catalogue, spec_of, name, dims, bfloat16, toolchain)
    x = make_inputs(catalogue.operations[name], "forward", dims, bfloat16, seed=1)["x"]
    tensors = {
        "x": place(io.reads[0], x, offset=side == "x"),
        "y": blank(io.writes[0], offset=side == "y"),
    }
    made.bind(tensors, None)()
    assert torch.equal(tensors["y"], x.t())
    moved = {name: toolchain.launches[0].traffic[t.data_ptr()] for name, t in tensors.items()}
    sectors = {name: one.load_sectors + one.store_sectors for name, one in moved.items()}
    aligned = x.nbytes // 32
    assert (sectors["x"] == aligned) == (side == "y")
    assert (sectors["y"] == aligned) == (side == "x")


def test_a_transposed_element_lies_beyond_two_billion(
    catalogue: Catalogue, spec_of: Any, libraries: Libraries
) -> None:
    side, tile = 46_400, 64
    assert side * side > 2**31 and side % tile == 0
    dims = {"rows": side, "columns": side}
    toolchain = EmulatorToolchain(libraries, only_blocks=last_block, count=False)
    _, made = prepared(catalogue, spec_of, "transpose", dims, bfloat16, toolchain)
    tensors = {name: sparse((side, side), torch.bfloat16) for name in "xy"}
    corner = torch.randn(tile, tile).bfloat16()
    tensors["x"][-tile:, -tile:] = corner
    made.bind(tensors, None)()
    assert torch.equal(tensors["y"][-tile:, -tile:], corner.t())


def test_a_gathered_element_lies_beyond_two_billion(
    catalogue: Catalogue, spec_of: Any, libraries: Libraries
) -> None:
    count, tile = 2**31 + 4096, 2048
    dims = {"rows": 1, "columns": count}
    toolchain = EmulatorToolchain(libraries, only_blocks=last_block, count=False)
    _, made = prepared(catalogue, spec_of, "gather_int64", dims, bfloat16, toolchain)
    tensors = {name: sparse((1, count), torch.bfloat16) for name in "xy"}
    tensors["index"] = sparse((1, count), torch.int64)
    last = torch.randn(tile).bfloat16()
    tensors["x"][0, -tile:] = last
    order = torch.randperm(tile)
    tensors["index"][0, -tile:] = order + count - tile
    made.bind(tensors, None)()
    assert torch.equal(tensors["y"][0, -tile:], last[order])


def test_a_strided_read_begins_beyond_two_billion(
    catalogue: Catalogue, spec_of: Any, libraries: Libraries
) -> None:
    count, tile = 2**28 + 2048, 2048
    dims = {"rows": 1, "columns": count}
    toolchain = EmulatorToolchain(libraries, only_blocks=last_block, count=False)
    _, made = prepared(catalogue, spec_of, "strided_read_8", dims, bfloat16, toolchain)
    tensors = {"x": sparse((1, count * 8), torch.bfloat16)}
    tensors["y"] = sparse((1, count), torch.bfloat16)
    last = torch.randn(tile).bfloat16()
    tensors["x"][0, -8 * tile :: 8] = last
    made.bind(tensors, None)()
    assert torch.equal(tensors["y"][0, -tile:], last)


def test_an_index_of_four_bytes_has_an_end(catalogue: Catalogue) -> None:
    with pytest.raises(ValueError, match="beyond an index of int32"):
        catalogue.operations["gather_int32"].directions(
            {"rows": 2**16, "columns": 2**15 + 1}, bfloat16
        )


def test_a_grid_has_an_end(catalogue: Catalogue, spec_of: Any) -> None:
    dims = {"rows": 1, "columns": 64 * (MAX_BLOCKS + 1)}
    with pytest.raises(CannotPrepare, match="exceed the largest grid"):
        prepared(catalogue, spec_of, "transpose", dims, bfloat16, Planner(Libraries()))


@pytest.mark.parametrize("name", ["gather_int32", "gather_int64"])
def test_an_index_is_a_permutation_in_random_order(catalogue: Catalogue, name: str) -> None:
    dims = {"rows": 3, "columns": 100}
    index = make_inputs(catalogue.operations[name], "forward", dims, bfloat16, seed=0)["index"]
    assert index.dtype == DTYPES[name.removeprefix("gather_")].torch_dtype
    order = index.flatten()
    assert torch.equal(order.sort().values, torch.arange(300, dtype=order.dtype))
    assert not torch.equal(order, order.sort().values)
