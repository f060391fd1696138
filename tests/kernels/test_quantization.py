"""Quantization: every code and every 16-bit value, special values, policies, refusals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, nan

import pytest
import torch
from membound.kernels.dtypes import DTYPES, DType, bfloat16, float8_e4m3fn, float16
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.spec import Spec
from membound.kernels.tolerance import compare_outputs
from membound.tests.emulator.run import CATALOGUE, bound, prepare, run_cuda, spec_of
from membound.tests.emulator.toolchain import EmulatorToolchain, Libraries, Planner
from membound.tests.kernels.test_conversions import every_value

Values = Mapping[str, torch.Tensor]

ONE = torch.ones(1)
EVERY = {"rows": 64, "columns": 1024}
BLOCK = {"rows": 1, "columns": 32}
ROW = {"rows": 1, "columns": 8}
PLANNED = [
    *((name, EVERY, dtype) for name in ("quantize_e4m3", "quantize_e5m2", "quantize_mxfp8_up",
        "quantize_mxfp8_floor", "quantize_mxfp4_up", "quantize_mxfp4_floor", "quantize_nvfp4")
      for dtype in (bfloat16, float16)),
    *((name, ROW, bfloat16) for name in ("quantize_e4m3_rows", "quantize_int8_rows",
        "prune_2_4", "compress_2_4", "amax")),
    *((f"dequantize_{form}", EVERY, bfloat16) for form in ("e4m3", "e5m2", "e4m3_rows",
        "int8_rows", "mxfp8", "mxfp4", "nvfp4")),
]  # fmt: skip


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    planned = Libraries()
    for name, dims, dtype in PLANNED:
        prepare(spec_of(name, "forward", dims, dtype), Planner(planned))
    planned.compile()
    return planned


def by_torch(spec: Spec, inputs: Values) -> dict[str, torch.Tensor]:
    form = CATALOGUE.default(spec.operation.name, "torch")
    assert form is not None
    returned = form.prepare(spec).bind(dict(inputs), None)()
    assert returned is not None
    return dict(zip([t.name for t in spec.io.writes], returned, strict=True))


def both(libraries: Libraries, name: str, inputs: Values) -> dict[str, torch.Tensor]:
    """Outputs of the kernel, whose bytes are torch's and hold to the reference."""
    first = inputs.get("x", inputs.get("q"))
    assert first is not None
    dtype = next((d for d in (bfloat16, float16) if d.torch_dtype == first.dtype), bfloat16)
    pairs = 2 if "q" in inputs and "fp4" in name else 1
    dims = {"rows": first.shape[0], "columns": first.shape[1] * pairs}
    spec = spec_of(name, "forward", dims, dtype)
    made, other = run_cuda(libraries, spec, inputs), by_torch(spec, inputs)
    exact = evaluate(spec.io, inputs)
    for who, outputs in (("cuda", made), ("torch", other)):
        for found in compare_outputs(spec.io.writes, outputs, exact):
            assert found.ok, f"{who}: {found}"
    for tensor in spec.io.writes:
        ours, theirs = made[tensor.name], other[tensor.name]
        same = codes(ours) == codes(theirs)
        if ours.is_floating_point():  # a NaN has many spellings
            same |= ours.double().isnan() & theirs.double().isnan()
        assert bool(same.all()), tensor.name
    return made


def codes(values: torch.Tensor) -> torch.Tensor:
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return values.contiguous().view(integers[values.element_size()])


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.0101])
@pytest.mark.parametrize("name", ["quantize_e4m3", "quantize_e5m2"])
def test_every_value_becomes_the_nearest_code(
    libraries: Libraries, name: str, scale: float, dtype: DType
) -> None:
    x = every_value(dtype).reshape(64, 1024)
    both(libraries, name, {"x": x, "scale": torch.tensor([scale])})


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
@pytest.mark.parametrize("form", ["mxfp8_up", "mxfp8_floor", "mxfp4_up", "mxfp4_floor", "nvfp4"])
def test_every_value_has_a_code_in_its_block(libraries: Libraries, form: str, dtype: DType) -> None:
    """Sorted, so that the values of a block are alike: infinity and NaN come last."""
    scale = {"scale": torch.tensor([3.0])} if form == "nvfp4" else {}
    x = every_value(dtype)
    alike = x[x.float().abs().argsort()].reshape(64, 1024)
    both(libraries, f"quantize_{form}", {"x": alike, **scale})


@pytest.mark.parametrize("form", ["e4m3", "e5m2"])
def test_every_code_comes_back(libraries: Libraries, form: str) -> None:
    every = torch.arange(256, dtype=torch.uint8).repeat(256).reshape(64, 1024)
    stored = every.view(DTYPES[{"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}[form]].torch_dtype)
    y = both(libraries, f"dequantize_{form}", {"q": stored, "scale": ONE})["y"]
    q = both(libraries, f"quantize_{form}", {"x": y, "scale": ONE})["q"]
    back = y.isfinite()
    assert torch.equal(codes(q)[back], every[back])


def test_every_pair_of_half_byte_codes_comes_back(libraries: Libraries) -> None:
    """Blocks that hold a 6, so that 1 is their scale by either rounding."""
    every = torch.arange(256, dtype=torch.uint8).repeat_interleave(16).reshape(4, 1024)
    every[:, ::16] = 0x07
    unit = torch.full((4, 64), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    y = both(libraries, "dequantize_mxfp4", {"q": every, "scales": unit})["y"]
    for way in ("up", "floor"):
        made = both(libraries, f"quantize_mxfp4_{way}", {"x": y})
        assert torch.equal(made["q"], every) and torch.equal(codes(made["scales"]), codes(unit))


def test_every_integer_comes_back(libraries: Libraries) -> None:
    every = torch.arange(-127, 129).clamp(max=127).to(torch.int8).reshape(1, 256)
    y = both(libraries, "dequantize_int8_rows", {"q": every, "scales": ONE})["y"]
    made = both(libraries, "quantize_int8_rows", {"x": y})
    assert torch.equal(made["q"], every) and made["scales"].item() == 1.0


def test_scales_of_every_exponent(libraries: Libraries) -> None:
    """0 is 2^-127, 254 is 2^127, 255 is NaN: shifted by one they would be 0 and infinity."""
    every = torch.arange(256, dtype=torch.uint8).reshape(1, 256).view(torch.float8_e8m0fnu)
    ones = torch.ones(1, 8192).to(torch.float8_e4m3fn)
    y = both(libraries, "dequantize_mxfp8", {"q": ones, "scales": every})["y"][0, ::32]
    assert [y[0].item(), y[1].item(), y[127].item()] == [2.0**-127, 2.0**-126, 1.0]
    assert y[254].item() == 2.0**127 and y[255].isnan()


@pytest.mark.parametrize(
    ("values", "floor", "up"),
    [  # exponents of the scales, as they are stored
        ([0.0, -0.0], 0, 0),
        ([1.0], 127 - 8, 127 - 8),  # 2^-8 either way: 256 is below 448
        ([448.0], 127, 127),
        ([450.0], 127, 128),  # the next bfloat16 above
        ([448.0 * 2**-20], 107, 107),
        ([450.0 * 2**-20], 107, 108),
        ([2.0**-133, -(2.0**-127)], 0, 0),  # subnormals
        ([2.0**-119], 0, 0),
        ([1e30], 218, 218),
        ([nan, 1.0], 255, 255),
        ([inf, 1.0], 246, 247),  # as the largest float32
    ],
)
def test_scales_of_mx_blocks_by_both_roundings(
    libraries: Libraries, values: list[float], floor: int, up: int
) -> None:
    x = torch.zeros(1, 32, dtype=torch.bfloat16)
    x[0, : len(values)] = torch.tensor(values)
    for way, exponent in (("floor", floor), ("up", up)):
        made = both(libraries, f"quantize_mxfp8_{way}", {"x": x})
        assert codes(made["scales"]).tolist() == [[exponent]], way
        if not values[0]:
            assert codes(made["q"])[0, :2].tolist() == [0, 0x80]


def test_the_two_roundings_of_957(libraries: Libraries) -> None:
    """Floor saturates at 448 · 2; up has room for 240 · 4."""
    x = torch.zeros(1, 32, dtype=torch.float16)
    x[0, 0] = 957.0
    for way, expected in (("floor", 896.0), ("up", 960.0)):
        made = both(libraries, f"quantize_mxfp8_{way}", {"x": x})
        assert (made["q"].double() * made["scales"].double())[0, 0] == expected


@pytest.mark.parametrize(
    ("values", "scale", "expected"),
    [
        ([6.0], 1.0, 1.0),
        ([0.0], 1.0, 0.0),
        ([0.0], 0.001, 0.0),  # and no scale beyond 448
        ([6.0 * 448], 1.0, 448.0),
        ([1e30], 1.0, 448.0),  # saturates
        ([inf], 1.0, 448.0),
        ([2.0**-12], 1.0, 0.0),  # the scale rounds to zero, and so do codes
        ([nan], 1.0, nan),
    ],
)
def test_scales_of_nvfp4_blocks(
    libraries: Libraries, values: list[float], scale: float, expected: float
) -> None:
    x = torch.zeros(1, 32, dtype=torch.bfloat16)
    x[0, : len(values)] = torch.tensor(values)
    made = both(libraries, "quantize_nvfp4", {"x": x, "scale": torch.tensor([scale])})
    found = made["scales"].float()
    assert found[0, 1] == 0 and made["q"][0, 8:].tolist() == [0] * 8
    assert found[0, 0].isnan() if expected != expected else found[0, 0] == expected
    assert expected != 0.0 or not made["q"].any()


@pytest.mark.parametrize("name", ["quantize_e4m3_rows", "quantize_int8_rows"])
def test_rows_that_are_not_numbers(libraries: Libraries, name: str) -> None:
    rows = [
        [0.0, -0.0, 0, 0, 0, 0, 0, 0],
        [1.0, nan, 2.0, 0, 0, 0, 0, 0],
        [1.0, -inf, 2.0, 0, 0, 0, 0, 0],
        [2.0**-133, -(2.0**-130), 0, 0, 0, 0, 0, 0],
        [1e30, -1e30, 5e29, 0, 0, 0, 0, 0],
        [300.0, -300.0, 1.0, 0, 0, 0, 0, 0],
    ]
    made = both(libraries, name, {"x": torch.tensor(rows).bfloat16()})
    scales = made["scales"]
    assert scales[0] == scales[3] == 2.0**-126 and scales[1].isnan() and scales[2] == inf
    largest = made["q"][4:, :2].double()
    limit = 448.0 if name == "quantize_e4m3_rows" else 127.0
    assert largest.tolist() == [[limit, -limit]] * 2


def test_amax_of_nothing_of_infinity_and_of_nan(libraries: Libraries) -> None:
    for values, expected in (([1.0, -3.0], 3.0), ([1.0, -inf], inf), ([inf, nan, 1.0], nan)):
        x = torch.zeros(2, 8, dtype=torch.bfloat16)
        x[1, : len(values)] = torch.tensor(values)
        found = both(libraries, "amax", {"x": x})["amax"].item()
        assert found == expected or (found != found and expected != expected)
    assert both(libraries, "amax", {"x": torch.zeros(0, 8).bfloat16()})["amax"].item() == 0.0


@pytest.mark.parametrize(
    ("group", "kept"),
    [
        ([1.0, -2.0, 3.0, -4.0], (2, 3)),
        ([1.0, 1.0, 1.0, 1.0], (0, 1)),  # the first of equals
        ([0.0, 0.0, 0.0, 5.0], (0, 3)),
        ([0.0, 5.0, 0.0, 0.0], (0, 1)),
        ([-1.0, 2.0, 1.0, 2.0], (1, 3)),
        ([1.0, inf, nan, -inf], (1, 2)),
        ([-0.0, 0.0, -0.0, 0.0], (0, 1)),
    ],
)
def test_two_of_four_are_kept(
    libraries: Libraries, group: list[float], kept: tuple[int, int]
) -> None:
    x = torch.tensor([[9.0, 8.0, 7.0, 6.0, *group]], dtype=torch.bfloat16)
    compressed = both(libraries, "compress_2_4", {"x": x})
    assert compressed["places"].tolist() == [[0b0100 | (kept[0] | kept[1] << 2) << 4]]
    dense = both(libraries, "prune_2_4", {"x": x})["y"]
    again = both(libraries, "compress_2_4", {"x": dense})
    for name, value in compressed.items():
        assert torch.equal(codes(value), codes(again[name])), name
    assert torch.equal(codes(compressed["values"])[0, 2:], codes(x)[0, [4 + k for k in kept]])


@pytest.mark.parametrize(("name", "block"), [
    ("quantize_mxfp8_up", 32), ("quantize_nvfp4", 16), ("dequantize_mxfp4", 32),
    ("rms_norm_quantize_nvfp4", 16), ("swiglu_quantize_nvfp4", 16), ("prune_2_4", 8),
])  # fmt: skip
def test_rows_that_blocks_do_not_fill_are_refused(name: str, block: int) -> None:
    with pytest.raises(ValueError, match=f"multiple of the block of {block}; got 100"):
        CATALOGUE.operations[name].directions({"rows": 2, "columns": 100}, bfloat16)


def test_rows_that_do_not_begin_on_vectors_are_refused_where_lanes_share_a_block() -> None:
    spec = spec_of("rms_norm_quantize_nvfp4", "forward", BLOCK, bfloat16)
    inputs = make_inputs(spec.operation, "forward", BLOCK, bfloat16, seed=1)
    with pytest.raises(ValueError, match="x must begin on 16 bytes"):
        bound(spec, EmulatorToolchain(), inputs, {"x": 1})


def twins(name: str, outputs: Values) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Outputs as kernels would leave them that are wrong in one respect."""
    q, scales = outputs["q"], outputs.get("scales")
    yield "shifted", {**outputs, "q": q.roll(1, -1)}
    if scales is not None:
        yield "scales shifted", {**outputs, "scales": scales.roll(1, -1)}
        by_code = scales.element_size() == 1
        off = (codes(scales) + 1).view(scales.dtype) if by_code else scales * 1.001
        yield "scales one off", {**outputs, "scales": off}
    if "fp4" in name:
        yield "nibbles swapped", {**outputs, "q": q >> 4 | q << 4}
    else:
        yield "one code off", {**outputs, "q": (codes(q) ^ 1).view(q.dtype)}


@pytest.mark.parametrize("name", [
    "quantize_e4m3", "quantize_e4m3_rows", "quantize_int8_rows", "quantize_mxfp8_up",
    "quantize_mxfp4_floor", "quantize_nvfp4", "rms_norm_quantize_e4m3",
    "add_rms_norm_quantize_nvfp4", "swiglu_quantize_nvfp4", "swiglu_quantize_e4m3",
])  # fmt: skip
def test_what_is_wrong_in_one_respect_is_rejected(name: str) -> None:
    dims = {"rows": 4, "columns": 256}
    spec = spec_of(name, "forward", dims, bfloat16)
    inputs = make_inputs(spec.operation, "forward", dims, bfloat16, seed=6)
    exact, outputs = evaluate(spec.io, inputs), by_torch(spec, inputs)
    assert all(found.ok for found in compare_outputs(spec.io.writes, outputs, exact))
    for what, wrong in twins(name, outputs):
        assert not all(f.ok for f in compare_outputs(spec.io.writes, wrong, exact)), what


@pytest.mark.parametrize("name", ["quantize_mxfp8", "quantize_mxfp4"])
def test_the_other_rounding_is_rejected(name: str) -> None:
    dims = {"rows": 4, "columns": 256}
    specs = {w: spec_of(f"{name}_{w}", "forward", dims, bfloat16) for w in ("up", "floor")}
    inputs = make_inputs(specs["up"].operation, "forward", dims, bfloat16, seed=6)
    for way, other in (("up", "floor"), ("floor", "up")):
        exact, outputs = evaluate(specs[way].io, inputs), by_torch(specs[other], inputs)
        assert not all(f.ok for f in compare_outputs(specs[way].io.writes, outputs, exact))


def test_truncated_codes_of_a_fused_norm_are_rejected() -> None:
    """Rounding toward zero, where the slack is that of a norm that is rounded first."""
    dims = {"rows": 4, "columns": 256}
    spec = spec_of("rms_norm_quantize_e4m3", "forward", dims, bfloat16)
    inputs = make_inputs(spec.operation, "forward", dims, bfloat16, seed=6)
    exact = evaluate(spec.io, inputs)
    right = float8_e4m3fn.rounded(exact["q"])
    further = right.abs() > exact["q"].abs()
    below = codes(right.to(torch.float8_e4m3fn)) - further.to(torch.uint8)
    wrong = {"q": below.view(torch.float8_e4m3fn)}
    assert not all(found.ok for found in compare_outputs(spec.io.writes, wrong, exact))


def test_sanitizers_find_nothing_where_lanes_share_a_block() -> None:
    dims = {"rows": 3, "columns": 48}
    spec = spec_of("rms_norm_quantize_nvfp4", "forward", dims, bfloat16)
    inputs = make_inputs(spec.operation, "forward", dims, bfloat16, seed=1)
    buffers, launch = bound(spec, EmulatorToolchain(sanitize=True), inputs)
    launch()
    exact = evaluate(spec.io, inputs)
    assert all(found.ok for found in compare_outputs(spec.io.writes, buffers, exact))
