"""Inputs are the same for everyone, incompressible and valid; references are sliced rightly."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
import torch
from membound.kernels import inputs as inputs_module
from membound.kernels.discovery import Catalogue
from membound.kernels.dtypes import DTYPES, bfloat16, float16, float32, uint8
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.operation import Direction, Directions, Tensor, operation
from membound.kernels.shapes import edge

ROWS = {"rows": 64, "columns": 48}
POOL = {"images": 5, "channels": 3, "height": 9, "width": 8, "kernel": 3, "stride": 2, "padding": 1}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def test_a_seed_gives_the_same_bytes_and_another_seed_gives_others(catalogue: Catalogue) -> None:
    fused = catalogue.operations["add_rms_norm"]
    first, again, other = (
        make_inputs(fused, "backward", ROWS, bfloat16, seed=seed) for seed in (1, 1, 2)
    )
    assert list(first) == ["dy", "dh", "h", "weight", "rstd"]
    for name in first:
        assert raw(first[name]) == raw(again[name])
        assert raw(first[name]) != raw(other[name])


def test_no_two_operands_are_the_same(catalogue: Catalogue) -> None:
    made = make_inputs(catalogue.operations["mix_3r1w"], "forward", ROWS, float32, seed=1)
    assert len({raw(value) for value in made.values()}) == 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_inputs_do_not_compress(catalogue: Catalogue, dtype: str) -> None:
    dims = {"rows": 1000, "columns": 1000}
    x = make_inputs(catalogue.operations["copy"], "forward", dims, DTYPES[dtype], seed=0)["x"]
    assert len(zlib.compress(raw(x), 6)) / x.nbytes > 0.75


def test_the_measure_of_compression_sees_what_it_is_for() -> None:
    truncated = torch.randn(1_000_000).bfloat16().float()
    assert len(zlib.compress(raw(truncated), 6)) / truncated.nbytes < 0.75


def test_backward_eats_what_the_forward_reference_leaves_rounded(catalogue: Catalogue) -> None:
    norm = catalogue.operations["rms_norm"]
    forward = make_inputs(norm, "forward", ROWS, float16, seed=4)
    backward = make_inputs(norm, "backward", ROWS, float16, seed=4)
    exact = evaluate(norm.directions(ROWS, float16).forward, forward)
    assert raw(backward["x"]) == raw(forward["x"])
    assert backward["rstd"].dtype == torch.float32
    assert torch.equal(backward["rstd"], exact["rstd"].float())

    fused = catalogue.operations["add_rms_norm"]
    forward = make_inputs(fused, "forward", ROWS, bfloat16, seed=4)
    backward = make_inputs(fused, "backward", ROWS, bfloat16, seed=4)
    assert torch.equal(backward["h"], forward["x"] + forward["residual"])

    pool = catalogue.operations["max_pool2d"]
    offset = make_inputs(pool, "backward", POOL, float32, seed=4)["offset"]
    assert offset.dtype == torch.uint8 and int(offset.max()) < 9


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    ("name", "dims"),
    [("rms_norm", ROWS), ("add_rms_norm", ROWS), ("silu", ROWS), ("max_pool2d", POOL)],
)
def test_a_reference_in_slices_is_the_reference(
    catalogue: Catalogue,
    name: str,
    dims: dict[str, int],
    direction: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    io = catalogue.operations[name].directions(dims, bfloat16).get(direction)
    assert io is not None
    given = make_inputs(catalogue.operations[name], direction, dims, bfloat16, seed=9)
    whole = evaluate(replace(io, separable=False), given)
    monkeypatch.setattr(inputs_module, "_CHUNK_ELEMENTS", 300)  # a few rows, a ragged last slice
    slices = 0

    def counted(*arguments: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        nonlocal slices
        slices += 1
        return io.reference(*arguments)

    sliced = evaluate(replace(io, reference=counted), given)
    assert slices > 1
    for tensor in io.outputs:
        assert sliced[tensor.name].dtype == whole[tensor.name].dtype
        torch.testing.assert_close(sliced[tensor.name], whole[tensor.name], rtol=1e-12, atol=0)


def test_a_reference_of_another_shape_is_refused() -> None:
    x = Tensor("x", (4, 6), float32)
    transposed = Direction([x], [Tensor("y", (4, 6), float32)], lambda x: x.T)
    with pytest.raises(ValueError, match=r"gives y as \(6, 4\); stated is \(4, 6\)"):
        evaluate(transposed, {"x": torch.ones(4, 6)})


def test_integers_need_a_fill() -> None:
    def stated(rows: int, dtype: object) -> Directions:
        index = Tensor("index", (rows,), uint8)
        return Directions(Direction([index], [Tensor("y", (rows,), float32)], lambda i: i.double()))

    def filled(rows: int, dtype: object) -> Directions:
        index = Tensor("index", (rows,), uint8, fill=lambda t, g: torch.full(t.shape, 3))
        return Directions(Direction([index], [Tensor("y", (rows,), float32)], lambda i: i.double()))

    unstated, given = (
        operation(shapes=[edge(rows=2)], dtypes=[float32])(f) for f in (stated, filled)
    )
    with pytest.raises(ValueError, match="stated: index is uint8, so it needs a fill"):
        make_inputs(unstated, "forward", {"rows": 2}, float32, seed=0)
    made = make_inputs(given, "forward", {"rows": 2}, float32, seed=0)["index"]
    assert made.dtype == torch.uint8 and made.tolist() == [3, 3]


def test_a_direction_that_is_not_there_is_named(catalogue: Catalogue) -> None:
    with pytest.raises(ValueError, match="copy has no backward"):
        make_inputs(catalogue.operations["copy"], "backward", ROWS, float32, seed=0)


def test_empty_tensors_are_made_and_evaluated(catalogue: Catalogue) -> None:
    dims = {"rows": 0, "columns": 40}
    norm = catalogue.operations["rms_norm"]
    io = norm.directions(dims, float32).backward
    assert io is not None
    outputs = evaluate(io, make_inputs(norm, "backward", dims, float32, seed=0))
    assert outputs["dx"].shape == (0, 40)
    assert outputs["dweight"].tolist() == [0] * 40
