"""Dropout, alone and fused, add_layer_norm and RoPE: draws, masks, and values that break them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
import torch
from membound.kernels import philox
from membound.kernels.backends.cuda import MAX_BLOCKS
from membound.kernels.backends.cuda_bias import bias_plan
from membound.kernels.discovery import Catalogue
from membound.kernels.dtypes import FLOATS, DType, bfloat16, float16, float32
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.operation import DirectionName
from membound.kernels.spec import CannotPrepare, Spec
from membound.kernels.target import ARCHITECTURES, reference_target
from membound.kernels.training import rope_cuda
from membound.tests.emulator.run import CATALOGUE, bound, prepare, run_cuda, spec_of
from membound.tests.emulator.toolchain import EmulatorToolchain, Libraries, Planner

VECTORS = [  # of the generator's authors (Random123, kat_vectors): counter, key, words
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
STATES = [(0, 0), (-1, -1), (2**63 - 1, -(2**63)), (0x299F31D0A4093822, 0x0370734413198A2E)]
HEADS = {"positions": 3, "q_heads": 3, "k_heads": 1, "width": 16}


def planned() -> Iterator[Spec]:
    """Specs below that share a compilation."""
    directions: tuple[DirectionName, ...] = ("forward", "backward")
    for direction in directions:
        for columns in (37, 64):
            yield rows_of("dropout", columns, float32, direction)
        for name in ("dropout_byte_mask", "dropout_bit_mask"):
            for dtype in (float32, bfloat16):
                for arch in ("sm_90", "sm_121"):
                    spec = rows_of(name, 64, dtype, direction)
                    yield replace(spec, target=reference_target(arch))
        yield rows_of("softmax_dropout", 3, float32, direction)
        for name in ("rope_half", "rope_interleaved"):
            yield spec_of(name, direction, HEADS, float32)
    for dtype in (float32, float16):
        yield rows_of("add_layer_norm", 3, dtype)


def rows_of(name: str, columns: int, dtype: DType, direction: DirectionName = "forward") -> Spec:
    return spec_of(name, direction, {"rows": 3, "columns": columns}, dtype)


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    libraries = Libraries()
    for spec in planned():
        prepare(spec, Planner(libraries))
    libraries.compile()
    return libraries


def words(counter: list[int], key: list[int]) -> list[int]:
    return [
        int(word)
        for word in philox.philox(
            [torch.tensor([c]) for c in counter], [torch.tensor([k]) for k in key]
        )
    ]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_the_generator_gives_its_published_words(
    counter: list[int], key: list[int], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert words(counter, key) == expected
    monkeypatch.setattr(philox, "_ROUNDS", 9)
    assert words(counter, key) != expected


@pytest.mark.parametrize("state", STATES)
def test_draws_are_halves_of_words_wherever_one_begins(state: tuple[int, int]) -> None:
    seed, offset = (value % 2**64 for value in state)
    group = 2**33 + 5
    counter = [group % 2**32, group >> 32, offset % 2**32, offset >> 32]
    drawn = words(counter, [seed % 2**32, seed >> 32])
    halves = [half for word in drawn for half in (word & 0xFFFF, word >> 16)]
    given = torch.tensor(state)
    assert philox.draws(given, 8 * group, 8).tolist() == halves
    assert philox.draws(given, 8 * group + 3, 4).tolist() == halves[3:7]
    assert torch.equal(philox.draws(given, 0, 300)[37:290], philox.draws(given, 37, 253))


def test_a_tenth_is_dropped_and_the_mean_stays() -> None:
    kept = philox.kept(torch.tensor([7, 1]), torch.empty(1000, 1000)).double()
    assert abs(float(kept.mean()) - 58982 / 65536) < 5 * (0.09 / 1e6) ** 0.5
    assert abs(float(kept.mean()) * philox.SCALE - 1) < 2e-3
    neighbours = torch.corrcoef(torch.stack((kept[:, 1:].flatten(), kept[:, :-1].flatten())))
    assert abs(float(neighbours[0, 1])) < 5e-3


def ones(spec: Spec) -> torch.Tensor:
    return torch.ones(spec.io.reads[0].shape, dtype=spec.dtype.torch_dtype)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("columns", [37, 64])
def test_the_kernel_draws_what_the_reference_draws(
    libraries: Libraries, columns: int, state: tuple[int, int]
) -> None:
    spec = rows_of("dropout", columns, float32)
    x, given = ones(spec), torch.tensor(state)
    y = run_cuda(libraries, spec, {"x": x, "state": given})["y"]
    kept = philox.kept(given, x)
    assert torch.equal(y, torch.where(kept, torch.tensor(philox.SCALE), 0.0))
    assert not torch.equal(kept, philox.kept(given + torch.tensor([0, 1]), x))
    back = rows_of("dropout", columns, float32, "backward")
    assert torch.equal(run_cuda(libraries, back, {"dy": x, "state": given})["dx"], y)


@pytest.mark.parametrize("arch", ["sm_90", "sm_121"])
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("name", ["dropout_byte_mask", "dropout_bit_mask"])
def test_the_mask_that_is_kept_is_the_one_that_was_drawn(
    libraries: Libraries, name: str, dtype: DType, arch: str
) -> None:
    """What forward saves is not compared elsewhere; sm_121 writes 16 bits of a mask at once."""
    spec = replace(rows_of(name, 64, dtype), target=reference_target(arch))
    given = torch.tensor([5, -3])
    inputs = {"x": ones(spec), "state": given}
    made, exact = run_cuda(libraries, spec, inputs), evaluate(spec.io, inputs)
    assert torch.equal(made["mask"], exact["mask"])
    kept = philox.kept(given, inputs["x"])
    for i in range(64):
        byte, bit = (i, 0) if name == "dropout_byte_mask" else divmod(i, 8)
        assert torch.equal(made["mask"][:, byte] >> bit & 1, kept[:, i].to(torch.uint8))
    back = replace(rows_of(name, 64, dtype, "backward"), target=reference_target(arch))
    dx = run_cuda(libraries, back, {"dy": inputs["x"], "mask": made["mask"]})["dx"]
    assert torch.equal(dx, made["y"])


def by_torch(spec: Spec, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What its torch implementation writes, on the CPU."""
    form = next(i for i in CATALOGUE.implementations(spec.operation) if i.label == "torch")
    returned = form.prepare(spec).bind(dict(inputs), None)()
    assert returned is not None
    return dict(zip([t.name for t in spec.io.writes], returned, strict=True))


def every(
    libraries: Libraries, spec: Spec, inputs: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, Mapping[str, torch.Tensor]]]:
    """(who, what it writes): the reference, the emulated kernel and torch."""
    yield "reference", evaluate(spec.io, inputs)
    yield "cuda", run_cuda(libraries, spec, inputs)
    yield "torch", by_torch(spec, inputs)


def test_what_is_dropped_is_multiplied_by_zero(libraries: Libraries) -> None:
    """As in PyTorch: NaN and infinity stay visible, -1 becomes -0."""
    spec = rows_of("dropout", 37, float32)
    state = torch.tensor([11, 0])
    for value, dropped, kept in ((nan, nan, nan), (inf, nan, inf), (-1.0, -0.0, -philox.SCALE)):
        x = torch.full((3, 37), value)
        where = philox.kept(state, x)
        expected = torch.where(where, torch.tensor(kept), torch.tensor(dropped))
        for who, made in every(libraries, spec, {"x": x, "state": state}):
            y = made["y"].float()
            torch.testing.assert_close(y, expected, equal_nan=True, rtol=0, atol=0, msg=who)
            assert torch.equal(y.signbit(), expected.signbit()) or y.isnan().any(), who
    assert torch.dropout(torch.full((99,), inf), 0.5, True).isnan().any()


@pytest.mark.parametrize(
    ("row", "softmax"),
    [
        ([-inf, -inf, -inf], [nan, nan, nan]),
        ([1.0, nan, 2.0], [nan, nan, nan]),
        ([1.0, inf, 2.0], [nan, nan, nan]),
        ([-inf, 0.0, 0.0], [0.0, 0.5, 0.5]),
        ([1e30, -1e30, 1e30], [0.5, 0.0, 0.5]),
        ([-1e4, -1e4, -1e4], [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_rows_of_softmax_dropout_that_are_not_numbers(
    libraries: Libraries, row: list[float], softmax: list[float]
) -> None:
    spec = rows_of("softmax_dropout", 3, float32)
    x, state = torch.tensor([row] * 3), torch.tensor([1, 0])
    kept = philox.kept(state, x)
    assert not kept.all()
    expected = torch.tensor([softmax] * 3).double() * (kept * philox.SCALE)
    for who, made in every(libraries, spec, {"x": x, "state": state}):
        y = made["y"].double()
        torch.testing.assert_close(y, expected, equal_nan=True, rtol=1e-6, atol=0, msg=who)
    back = rows_of("softmax_dropout", 3, float32, "backward")
    lse = run_cuda(libraries, spec, {"x": x, "state": state})["lse"]
    inputs = {"dy": torch.randn(3, 3), "x": x, "lse": lse, "state": state}
    (_, exact), *others = every(libraries, back, inputs)
    spacing = float(lse[0].abs()) * 2**-23 if lse[0].isfinite() else 0.0
    for who, made in others:  # torch keeps the softmax, and loses nothing to the spacing of lse
        dx, rtol = made["dx"].double(), 1e-5 + (who == "torch") * spacing
        torch.testing.assert_close(
            dx, exact["dx"], equal_nan=True, rtol=rtol, atol=max(rtol, 1e-6), msg=who
        )


def test_the_fused_norm_is_of_the_sum_as_it_is_stored(catalogue: Catalogue) -> None:
    dims = {"rows": 4, "columns": 64}
    add, norm, fused = (
        catalogue.operations[name].directions(dims, bfloat16).forward
        for name in ("add", "layer_norm", "add_layer_norm")
    )
    x, residual, weight, bias = (
        torch.randn(shape).bfloat16() for shape in ((4, 64), (4, 64), (64,), (64,))
    )
    rest = {"weight": weight, "bias": bias}
    made = evaluate(fused, {"x": x, "residual": residual} | rest)
    h = evaluate(add, {"a": x, "b": residual})["y"].bfloat16()
    assert torch.equal(made["h"], h.double())
    assert torch.equal(made["y"], evaluate(norm, {"x": h} | rest)["y"])


@pytest.mark.parametrize(
    ("dtype", "x", "residual", "h", "y"),
    [
        (float32, [4096.0, 4097.0, 4098.0], [0.0] * 3, [4096.0, 4097.0, 4098.0], [-1, 0, 1]),
        (float32, [1e4, 2.0, -3.0], [-1e4, -2.0, 3.0], [0.0] * 3, [0.0] * 3),  # a constant row
        (float16, [6e4, 0.0, 0.0], [6e4, 0.0, 0.0], [inf, 0.0, 0.0], [nan] * 3),
        (float16, [300.0, 0.0, -300.0], [0.0] * 3, [300.0, 0.0, -300.0], [-1, 0, 1][::-1]),
    ],
)
def test_sums_that_break_a_norm(
    libraries: Libraries,
    dtype: DType,
    x: list[float],
    residual: list[float],
    h: list[float],
    y: list[float],
) -> None:
    stored = dtype.torch_dtype
    inputs = {"x": torch.tensor([x] * 3).to(stored), "weight": torch.ones(3, dtype=stored)}
    inputs["residual"] = torch.tensor([residual] * 3).to(stored)
    inputs["bias"] = torch.zeros(3, dtype=stored)
    for who, made in every(libraries, rows_of("add_layer_norm", 3, dtype), inputs):
        assert made["h"][0].tolist() == h, who
        expected = 1.5**0.5 * torch.tensor(y).double()
        got = made["y"][0].double()
        torch.testing.assert_close(got, expected, equal_nan=True, rtol=1e-3, atol=0, msg=who)


def turned(name: str, inputs: Mapping[str, torch.Tensor], libraries: Libraries) -> Any:
    return run_cuda(libraries, spec_of(name, "forward", HEADS, float32), inputs)


@pytest.mark.parametrize("name", ["rope_half", "rope_interleaved"])
def test_backward_turns_back_what_forward_turned(libraries: Libraries, name: str) -> None:
    inputs = make_inputs(CATALOGUE.operations[name], "forward", HEADS, float32, seed=4)
    made = turned(name, inputs, libraries)
    for head in ("q", "k"):
        rotated = made[f"rotated_{head}"]
        assert torch.equal(rotated[0], inputs[head][0])  # position 0 is turned by 0
        assert not torch.isclose(rotated[1:], inputs[head][1:]).all(-1).any()
        torch.testing.assert_close(rotated.norm(dim=-1), inputs[head].norm(dim=-1))
    back = spec_of(name, "backward", HEADS, float32)
    gradients = {f"drotated_{head}": made[f"rotated_{head}"] for head in ("q", "k")}
    restored = run_cuda(libraries, back, gradients | {n: inputs[n] for n in ("cos", "sin")})
    torch.testing.assert_close(restored["dq"], inputs["q"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(restored["dk"], inputs["k"], rtol=1e-5, atol=1e-6)


def test_the_conventions_differ_by_the_order_of_a_heads_elements(libraries: Libraries) -> None:
    inputs = make_inputs(CATALOGUE.operations["rope_half"], "forward", HEADS, float32, seed=4)
    half = turned("rope_half", inputs, libraries)["rotated_q"]
    apart = torch.arange(16).reshape(2, 8).T.reshape(-1)  # 0, 8, 1, 9, …
    together = {"q": inputs["q"][..., apart].contiguous(), "k": inputs["k"]}
    interleaved = turned("rope_interleaved", inputs | together, libraries)["rotated_q"]
    torch.testing.assert_close(interleaved, half[..., apart])
    pairs = torch.view_as_complex(together["q"].reshape(3, 3, 8, 2))
    turns = torch.complex(inputs["cos"], inputs["sin"])[:, None]
    torch.testing.assert_close(interleaved, torch.view_as_real(pairs * turns).flatten(-2))


@pytest.mark.parametrize("name", ["rope_half", "rope_interleaved"])
@pytest.mark.parametrize("moved", ["q", "rotated_k", "sin"])
def test_heads_may_begin_anywhere(libraries: Libraries, name: str, moved: str) -> None:
    spec = spec_of(name, "forward", HEADS, float32)
    inputs = make_inputs(spec.operation, "forward", HEADS, float32, seed=4)
    buffers, launch = bound(spec, EmulatorToolchain(libraries), inputs, {moved: 1})
    launch()
    made = turned(name, inputs, libraries)
    for output in ("rotated_q", "rotated_k"):
        assert torch.equal(buffers[output], made[output])


@pytest.mark.parametrize(
    ("name", "dims", "message"),
    [
        ("dropout_bit_mask", {"rows": 2, "columns": 12}, "columns % 8 == 0; got 12 columns"),
        ("bias_dropout_residual_bit_mask", {"rows": 2, "columns": 1}, "got 1 columns"),
        ("rope_half", HEADS | {"width": 7}, "its width is even; got 7"),
        ("rope_interleaved", HEADS | {"width": 1}, "its width is even; got 1"),
    ],
)
def test_shapes_that_cannot_be_are_named(name: str, dims: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CATALOGUE.operations[name].directions(dims, float32)


@pytest.mark.parametrize(
    ("name", "columns", "offsets", "named"),
    [
        ("bias_dropout_residual", 128, {"residual": 1}, "residual must begin on 16 bytes"),
        ("bias_dropout_residual", 33, {"residual": 1}, "residual and x must begin alike"),
        ("dropout_byte_mask", 33, {"mask": 1}, "mask and x must begin alike"),
        ("add_layer_norm", 128, {"h": 1}, "h must begin on 16 bytes"),
    ],
)
def test_operands_that_no_plan_cuts_alike_are_refused_by_name(
    name: str, columns: int, offsets: Mapping[str, int], named: str
) -> None:
    spec = rows_of(name, columns, bfloat16)
    inputs = make_inputs(spec.operation, "forward", spec.dims, bfloat16, seed=1)
    with pytest.raises(ValueError, match=named):
        bound(spec, Planner(Libraries()), inputs, offsets)


def test_sums_of_a_bias_do_not_depend_on_the_order_of_blocks(libraries: Libraries) -> None:
    dims = {"rows": 40, "columns": 128}
    spec = spec_of("bias_dropout_residual", "backward", dims, float32)
    inputs = make_inputs(spec.operation, "backward", dims, float32, seed=1)
    first, *others = (run_cuda(libraries, spec, inputs, seed)["dbias"] for seed in (1, 2, 3))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_every_shape_has_a_launch_the_device_can_run(arch: str, dtype: DType) -> None:
    target = reference_target(arch)
    for columns in (1, 2, 31, 768, 4096, 4097, 16384, 131_071, 262_144):
        for rows in (1, 65_536, 2**31):
            for backward in (False, True):
                item = dtype.bits // 8
                plan = bias_plan(rows, columns, item, target, backward=backward, more=32)
                assert 32 <= plan.rows.threads <= 1024 and plan.rows.threads % 32 == 0
                assert plan.rows.shared_bytes < target.shared_per_block
                assert 1 <= plan.tiles * plan.shares <= MAX_BLOCKS


@pytest.mark.parametrize("of_token", [1, 3, 80, 255, 256, 257, 4096, 100_000])
def test_a_block_of_heads_has_work_for_its_threads(of_token: int) -> None:
    tokens = rope_cuda.tokens_of_block(of_token)
    turns = -(-tokens * of_token // 256)
    assert 1 <= tokens <= 256 and tokens * of_token >= 0.9 * 256 * turns


def test_more_heads_than_32_bits_count_are_refused() -> None:
    dims = {"positions": 1, "q_heads": 2**24, "k_heads": 1, "width": 128}
    with pytest.raises(CannotPrepare, match=r"fewer than 2\^31 elements"):
        prepare(spec_of("rope_half", "forward", dims, bfloat16), Planner(Libraries()))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_tables_are_float32_whatever_the_heads_are(dtype: DType) -> None:
    io = CATALOGUE.operations["rope_half"].directions(HEADS, dtype).forward
    assert io.operands["cos"].dtype == io.operands["sin"].dtype == float32
