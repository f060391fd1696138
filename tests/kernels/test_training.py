"""Training steps: what PyTorch's own classes do, values at which formulas break, large indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
import torch
from membound.kernels import chain
from membound.kernels.backends.cuda import Geometry
from membound.kernels.discovery import Catalogue
from membound.kernels.dtypes import DType, bfloat16, float32, int8, uint8
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.operation import DirectionName, Tensor
from membound.kernels.target import reference_target
from membound.kernels.tolerance import compare, tolerance
from membound.kernels.training import adamw, adamw_8bit, cross_entropy, embedding, sgd
from membound.kernels.training.grad_norm import PIECE, parameter_sizes
from membound.tests.emulator.cases import blank, place
from membound.tests.emulator.toolchain import EmulatorToolchain, Libraries, Planner
from membound.tests.kernels.test_emulated_large import sparse
from torch.nn import functional

Run = Any
SQUARE = {"rows": 512, "columns": 512}
STEPS: list[tuple[str, int]] = [("adamw", 512), ("adamw_8bit", 512), ("sgd_momentum", 512)]
CLASSES = (2, 33, 1025, 70_001)
LOSSES = ("cross_entropy", "cross_entropy_smoothed")
BOTH = "_forward_backward"
GPT2 = {"layers": 12, "hidden": 3072, "features": 768, "keys": 768}
GPT2 |= {"vocabulary": 50257, "positions": 1024}
LLAMA = {"layers": 32, "hidden": 14336, "features": 4096, "keys": 1024}
LLAMA |= {"vocabulary": 128256, "positions": 0}
SMALL_MODEL = {"layers": 1, "hidden": 4, "features": 4, "keys": 4, "vocabulary": 3, "positions": 0}
ONE_ROW = {"tokens": 2100, "vocabulary": 1, "columns": 40}


def given(
    catalogue: Catalogue,
    spec_of: Any,
    name: str,
    direction: DirectionName,
    dims: Mapping[str, int],
    dtype: DType,
    toolchain: Any,
) -> Any:
    """(io, prepared) of the CUDA C++ form."""
    spec = spec_of(catalogue.operations[name], direction, dims, dtype)
    form = catalogue.default(name, "cuda")
    assert form is not None
    spec = replace(spec, target=reference_target("sm_90"), toolchain=toolchain)
    return spec.io, form.prepare(spec)


def asked() -> list[tuple[str, DirectionName, Mapping[str, int], DType]]:
    """Every kernel that is run below, so that each source is compiled once."""
    found: list[tuple[str, DirectionName, Mapping[str, int], DType]] = [
        *((name, "forward", {"rows": 1, "columns": n}, float32) for name, n in STEPS),
        ("grad_norm", "forward", SMALL_MODEL, float32),
        ("grad_norm", "forward", SMALL_MODEL, bfloat16),
        ("grad_clip", "forward", SMALL_MODEL, float32),
        ("grad_clip", "forward", SMALL_MODEL, bfloat16),
        ("embedding", "forward", {"tokens": 4, "vocabulary": 5, "columns": 24}, float32),
        ("embedding", "forward", {"tokens": 4, "vocabulary": 5, "columns": 4096}, bfloat16),
        ("embedding", "backward", ONE_ROW, float32),
        ("embedding", "backward", {"tokens": 4, "vocabulary": 5, "columns": 4096}, bfloat16),
    ]
    for columns in CLASSES:
        dims = {"rows": 1, "columns": columns}
        for name in LOSSES:
            found.append((name, "forward", dims, float32))
            found.append((name, "backward", dims, float32))
            found.append((name + BOTH, "forward", dims, float32))
    return found


@pytest.fixture(scope="module")
def libraries(catalogue: Catalogue, spec_of: Any) -> Libraries:
    planned = Libraries()
    for one in asked():
        given(catalogue, spec_of, *one, Planner(planned))
    planned.compile()
    return planned


@pytest.fixture
def run(catalogue: Catalogue, spec_of: Any, libraries: Libraries) -> Run:
    """Outputs by name, of an operation at these dims and inputs."""

    def run_one(
        name: str,
        direction: DirectionName,
        dims: Mapping[str, int],
        inputs: Mapping[str, torch.Tensor],
        dtype: DType = float32,
    ) -> dict[str, torch.Tensor]:
        toolchain = EmulatorToolchain(libraries, count=False)
        io, prepared = given(catalogue, spec_of, name, direction, dims, dtype, toolchain)
        buffers = {t.name: blank(t) for t in (*io.outputs, *prepared.scratch)}
        for buffer in buffers.values():
            buffer.view(torch.uint8).fill_(0xFF)
        buffers |= {t.name: place(t, inputs[t.name]) for t in io.reads}
        prepared.bind(buffers, None)()
        return {t.name: buffers[t.name] for t in io.outputs}

    return run_one


# Bytes


@pytest.mark.parametrize(
    ("name", "dtype", "whole", "apart"),
    [
        ("adamw", float32, 28, 48),
        ("adamw", bfloat16, 14, 24),
        ("adamw_master", bfloat16, 28, 60),
        ("adamw_8bit", float32, 16.0625, None),
        ("sgd", float32, 12, None),
        ("sgd_momentum", float32, 20, 24),
        ("grad_accumulate", bfloat16, 10, 18),
    ],
)
def test_bytes_of_a_parameter(
    catalogue: Catalogue, name: str, dtype: DType, whole: float, apart: int | None
) -> None:
    operation, parameters = catalogue.operations[name], 512 * 512
    assert operation.directions(SQUARE, dtype).forward.traffic == whole * parameters
    if apart is None:
        assert not operation.chains
    else:
        args = (catalogue.operations, operation, "unfused", "forward", SQUARE, dtype)
        assert chain.traffic(*args) == apart * parameters


def test_a_loss_with_its_gradient_reads_logits_once(catalogue: Catalogue) -> None:
    operation, dims = catalogue.operations["cross_entropy" + BOTH], {"rows": 64, "columns": 32000}
    args = (catalogue.operations, operation, "unfused", "forward", dims, bfloat16)
    logits = 64 * 32000 * 2
    assert operation.directions(dims, bfloat16).forward.traffic == 2 * logits + 16 * 64
    assert chain.traffic(*args) == 3 * logits + 32 * 64
    longest = operation.directions({"rows": 64, "columns": 128_256}, bfloat16).forward
    assert longest.schedule_bytes is None  # a cluster keeps them
    longest = operation.directions({"rows": 64, "columns": 2**20}, bfloat16).forward
    assert longest.schedule_bytes == 3 * 64 * 2**20 * 2 + 16 * 64


def test_the_models_have_the_parameters_they_are_known_for() -> None:
    assert sum(parameter_sizes(**GPT2)) == 124_439_808
    assert len(parameter_sizes(**GPT2)) == 148
    assert sum(parameter_sizes(**LLAMA)) == 8_030_261_248
    assert len(parameter_sizes(**LLAMA)) == 291


# Optimizers


def test_adamw_is_that_of_pytorch() -> None:
    torch.manual_seed(0)
    p, g, m = torch.randn(3, 64, dtype=torch.float64)
    v = torch.randn(64, dtype=torch.float64).square()
    parameter = torch.nn.Parameter(p.clone())
    optimizer = torch.optim.AdamW([parameter])
    optimizer.state[parameter] = {
        "step": torch.tensor(float(adamw.STEP - 1)),
        "exp_avg": m.clone(),
        "exp_avg_sq": v.clone(),
    }
    parameter.grad = g.clone()
    optimizer.step()
    state = optimizer.state[parameter]
    for got, expected in zip(
        adamw.whole(p, g, m, v),
        (parameter.detach(), state["exp_avg"], state["exp_avg_sq"]),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


def test_sgd_is_that_of_pytorch() -> None:
    torch.manual_seed(0)
    p, g, b = torch.randn(3, 64, dtype=torch.float64)
    parameter = torch.nn.Parameter(p.clone())
    optimizer = torch.optim.SGD([parameter], lr=sgd.RATE, momentum=sgd.MOMENTUM)
    optimizer.state[parameter]["momentum_buffer"] = b.clone()
    parameter.grad = g.clone()
    optimizer.step()
    new_p, new_b = sgd.step_with_momentum(p, g, b)
    torch.testing.assert_close(new_p, parameter.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(new_b, optimizer.state[parameter]["momentum_buffer"])


def test_adamw_at_zero_and_beyond(run: Run) -> None:
    """Columns: nothing moves; NaN; infinity; a g² beyond float32; a v that sqrt keeps; -0."""
    p = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, -0.0]])
    g = torch.tensor([[0.0, nan, inf, 1e20, 1e-30, 0.0]])
    zero = torch.zeros_like(p)
    out = run("adamw", "forward", {"rows": 1, "columns": 6}, {"p": p, "g": g, "m": zero, "v": zero})
    new_p, new_m, new_v = (out[name][0].tolist() for name in ("new_p", "new_m", "new_v"))
    assert new_p[0] == pytest.approx(1 - 1e-5, rel=1e-7) and new_m[0] == new_v[0] == 0
    assert all(value[1] != value[1] for value in (new_p, new_m, new_v))
    assert new_m[2] == new_v[2] == inf and new_p[2] != new_p[2]
    assert new_v[3] == inf and new_m[3] == pytest.approx(1e19) and new_p[3] == new_p[0]
    assert new_p[4] == pytest.approx(new_p[0]) and new_p[5] == 0


def eight_bit(run: Run, g: torch.Tensor, m_scale: float = 0.0, r_scale: float = 0.0) -> Any:
    blocks, shape = -(-g.numel() // 256), tuple(g.shape)
    inputs = {
        "p": torch.ones(shape),
        "g": g,
        "m": torch.full(shape, 3, dtype=torch.int8),
        "r": torch.full(shape, 5, dtype=torch.uint8),
        "m_scale": torch.full((blocks,), m_scale),
        "r_scale": torch.full((blocks,), r_scale),
    }
    return run("adamw_8bit", "forward", {"rows": shape[0], "columns": shape[1]}, inputs)


def test_blocks_of_zeros_and_of_what_is_not_finite(run: Run) -> None:
    g = torch.zeros(1, 256 * 3 + 7)
    g[0, 300], g[0, 600], g[0, 770] = nan, -inf, 1e-12
    out = eight_bit(run, g)
    scale, root = out["new_m_scale"], out["new_r_scale"]
    assert scale[0] == root[0] == adamw_8bit.SMALLEST
    assert scale[1].isnan() and root[1].isnan() and scale[2] == root[2] == inf
    codes = torch.cat((out["new_m"].int(), out["new_r"].int()))
    assert not codes[:, :768].any()
    # The last block has 7 elements; what follows them counts as zeros.
    assert codes[:, 768:].tolist() == [[0, 0, 127, 0, 0, 0, 0], [0, 0, 255, 0, 0, 0, 0]]
    untouched = out["new_p"][0, :256]
    assert torch.equal(untouched, untouched[:1].expand(256)) and out["new_p"][0, 300].isnan()


def test_codes_are_rounded_to_nearest_even(run: Run) -> None:
    """Gradients that are whole codes and halves: 0.5 and 2.5 go down, 1.5 up."""
    g = torch.zeros(1, 256)
    g[0, :7] = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 60.4])
    scale = 2.0**-10 / (1 - adamw.BETA1)
    codes = eight_bit(run, g * scale)["new_m"][0, :7].tolist()
    assert codes[0] == 127 and codes[6] == 60
    for code, ties in zip(codes[1:6], ((0, 1), (1, 2), (2, 3), (-1, 0), (-2, -1)), strict=True):
        assert code in ties  # 0.1 is no float32


@pytest.mark.parametrize("dtype", [int8, uint8], ids=str)
def test_a_truncated_code_is_rejected(dtype: DType) -> None:
    exact = torch.tensor([0.0, 3.2, 99.7, 100.5 - 1e-4, 127.0], dtype=torch.float64)
    tensor = Tensor("codes", (5,), dtype, slack=2.0**-12)
    for stored, right in (
        ([0, 3, 100, 100, 127], True),
        ([0, 3, 100, 101, 127], True),  # a tie, within the slack
        ([0, 3, 99, 100, 127], False),  # truncated
        ([0, 4, 100, 100, 127], False),
        ([1, 3, 100, 100, 127], False),
    ):
        value = torch.tensor(stored, dtype=dtype.torch_dtype)
        assert compare(tensor, value, exact).ok == right, stored


# Gradients of a model


def test_a_norm_is_of_its_own_tensor(run: Run) -> None:
    sizes = parameter_sizes(**SMALL_MODEL)
    g = torch.ones(sum(sizes))
    g[sizes[0]], g[-1] = nan, 2e19
    tables = {name: torch.zeros(len(sizes) + 1).long() for name in ("starts", "pieces")}
    tables["starts"][1:] = torch.tensor(sizes).cumsum(0)
    tables["pieces"][1:] = torch.arange(1, len(sizes) + 1)
    out = run("grad_norm", "forward", SMALL_MODEL, {"g": g, **tables})
    norms = out["norms"]
    assert norms[1].isnan() and norms[-1] == inf and out["norm"].isnan()
    whole = torch.tensor(sizes).sqrt()
    torch.testing.assert_close(norms[2:-1], whole[2:-1])
    assert norms[0] == whole[0]


def test_a_piece_left_out_is_seen(catalogue: Catalogue) -> None:
    norms, norm = catalogue.operations["grad_norm"].directions(GPT2, bfloat16).forward.writes
    total = sum(parameter_sizes(**GPT2))
    assert tolerance(norm) < 0.5 * PIECE / total
    assert tolerance(norms) < 0.5 * PIECE / (50257 * 768)


@pytest.mark.parametrize(
    ("norm", "factor"), [(0.5, 1.0), (1.0, 1.0), (4.0, 0.25), (inf, 0.0), (nan, nan)]
)
def test_gradients_are_scaled_down_and_never_up(run: Run, norm: float, factor: float) -> None:
    elements = sum(parameter_sizes(**SMALL_MODEL))
    g = torch.arange(elements, dtype=torch.float32)
    y = run("grad_clip", "forward", SMALL_MODEL, {"g": g, "norm": torch.tensor([norm])})["y"]
    expected = g * factor
    torch.testing.assert_close(y, expected, rtol=2e-6, atol=0, equal_nan=True)
    if norm < 1:
        assert torch.equal(y, g)


# Embedding


def test_tokens_are_words_and_reach_both_ends_of_the_table() -> None:
    index = embedding.index_of(8192, 50257)
    assert index[0] == 50256 and index[-1] == 0
    assert index.min() >= 0 and index.max() < 50257
    assert torch.bincount(index).max() > 300  # the most frequent word of 8192
    order, slots, rows = embedding.sorted_tokens(8192, 50257)
    assert torch.equal(torch.unique(index)[slots.long()], index[order])
    assert rows == len(torch.unique(index)) and torch.equal(order.sort().values, torch.arange(8192))


def test_a_table_without_rows_is_refused(catalogue: Catalogue) -> None:
    with pytest.raises(ValueError, match="vocabulary is 0"):
        catalogue.operations["embedding"].directions(
            {"tokens": 4, "vocabulary": 0, "columns": 8}, float32
        )


def test_the_gradient_is_that_of_pytorch(catalogue: Catalogue) -> None:
    tokens, vocabulary, columns = 300, 40, 6
    dims = {"tokens": tokens, "vocabulary": vocabulary, "columns": columns}
    directions = catalogue.operations["embedding"].directions(dims, float32)
    assert directions.backward is not None
    table = torch.randn(vocabulary, columns, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(tokens, columns, dtype=torch.float64)
    index = embedding.index_of(tokens, vocabulary)
    (gradient,) = torch.autograd.grad(functional.embedding(index, table), table, dy)
    order, slots, rows = embedding.sorted_tokens(tokens, vocabulary)
    before = torch.randn(rows, columns, dtype=torch.float64)
    got = directions.backward.reference(dy, order, slots, before)
    torch.testing.assert_close(got, before + gradient[torch.unique(index)])
    assert torch.equal(embedding.forward(index, table), table[index])


def test_a_token_that_is_no_row_gives_nan(run: Run) -> None:
    table = torch.randn(5, 24)
    index = torch.tensor([4, -1, 5, 2**40])
    dims = {"tokens": 4, "vocabulary": 5, "columns": 24}
    y = run("embedding", "forward", dims, {"index": index, "table": table})["y"]
    assert torch.equal(y[0], table[4]) and y[1:].isnan().all()
    assert embedding.forward(index, table)[1:].isnan().all()


def test_a_row_that_66_pieces_share(run: Run, catalogue: Catalogue) -> None:
    inputs = make_inputs(catalogue.operations["embedding"], "backward", ONE_ROW, float32, seed=1)
    inputs["dy"][7] = 1e4  # a token left out, or added twice, is seen
    got = run("embedding", "backward", ONE_ROW, inputs)["dtable"]
    exact = inputs["before"].double() + inputs["dy"].double().sum(0)
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=0)


# Cross-entropy


def special_rows(columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and targets at which formulas break."""
    torch.manual_seed(columns)
    x = torch.randn(13, columns)
    target = torch.randint(columns, (13,))
    x[0] = -inf
    x[1, -1] = nan
    x[2, 0] = inf
    x[3], x[3, target[3]] = -inf, 2.0  # all the others are masked
    x[4, target[4]] = -inf
    x[5] += 1e4
    x[6] -= 1e4
    x[7, 0], x[7, -1] = 1e4, -1e4
    x[8] = nan
    target[8] = cross_entropy.IGNORED
    target[9], target[10], target[11] = -1, columns, 2**40
    target[12] = columns - 1
    return x, target


@pytest.mark.parametrize("columns", CLASSES)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_special_rows(run: Run, catalogue: Catalogue, name: str, columns: int) -> None:
    x, target = special_rows(columns)
    dims = {"rows": len(x), "columns": columns}
    directions = catalogue.operations[name].directions(dims, float32)
    both = catalogue.operations[name + BOTH].directions(dims, float32).forward
    inputs = {"x": x, "target": target, "dloss": torch.randn(len(x))}
    exact = evaluate(directions.forward, inputs)
    got = run(name, "forward", dims, inputs)
    agree(got["loss"], exact["loss"])
    agree(got["lse"], exact["lse"])
    for io, direction in ((both, name + BOTH), (directions.backward, name)):
        assert io is not None
        inputs["lse"] = exact["lse"].float()
        dx = run(direction, "forward" if io is both else "backward", dims, inputs)["dx"]
        # Of logits near 1e4 an lse in float32 is uncertain by 2^-11.
        expected = evaluate(io, inputs)["dx"]
        agree(dx, expected, rtol=2e-3 if io is both else 1e-5)
        assert not dx[8].any() and dx[9:12].isnan().all()


def agree(got: torch.Tensor, exact: torch.Tensor, rtol: float = 1e-5) -> None:
    torch.testing.assert_close(got.double(), exact, rtol=rtol, atol=2e-6, equal_nan=True)


def test_what_special_rows_are_worth(catalogue: Catalogue) -> None:
    x, target = special_rows(33)
    loss, _ = cross_entropy.losses(x.double(), target, 0.0)
    assert loss[:3].isnan().all() and loss[3] == 0 and loss[4] == inf and loss[8] == 0
    assert loss[9:12].isnan().all() and loss[[5, 6, 7, 12]].isfinite().all()


@pytest.mark.parametrize("smoothing", [0.0, cross_entropy.SMOOTHING])
def test_losses_and_gradients_are_those_of_pytorch(smoothing: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(9, 17, dtype=torch.float64, requires_grad=True)
    target, dloss = torch.randint(17, (9,)), torch.randn(9, dtype=torch.float64)
    target[4] = cross_entropy.IGNORED
    expected = functional.cross_entropy(x, target, reduction="none", label_smoothing=smoothing)
    (dx,) = torch.autograd.grad(expected, x, dloss)
    loss, lse = cross_entropy.losses(x.detach(), target, smoothing)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(
        cross_entropy.gradients(dloss, x.detach(), target, lse, smoothing), dx
    )


def test_all_targets_ignored(run: Run) -> None:
    dims, target = {"rows": 3, "columns": 33}, torch.full((3,), cross_entropy.IGNORED)
    inputs = {"x": torch.randn(3, 33), "target": target, "dloss": torch.ones(3)}
    got = run("cross_entropy" + BOTH, "forward", dims, inputs)
    assert not got["loss"].any() and not got["dx"].any()


def test_one_class_has_no_loss(run: Run) -> None:
    x, target = torch.randn(2, 1) * 100, torch.zeros(2).long()
    got = run("cross_entropy" + BOTH, "forward", {"rows": 2, "columns": 1},
              {"x": x, "target": target, "dloss": torch.ones(2)})  # fmt: skip
    assert got["loss"].abs().max() < 1e-6 and got["dx"].abs().max() < 1e-6


def test_no_class_is_refused(catalogue: Catalogue) -> None:
    with pytest.raises(ValueError, match="columns is 0"):
        catalogue.operations["cross_entropy"].directions({"rows": 4, "columns": 0}, float32)


# Beyond 2^31 elements, in memory that hardly exists: only the last blocks of a grid run.


def last_blocks(geometry: Geometry) -> list[int]:
    """Two, so that all columns of the last tokens are there."""
    return [block for block in (geometry.blocks - 2, geometry.blocks - 1) if block >= 0]


def beyond(
    catalogue: Catalogue,
    spec_of: Any,
    libraries: Libraries,
    name: str,
    direction: DirectionName,
    dims: Mapping[str, int],
    dtype: DType,
) -> Any:
    """(io, buffers, a function that binds them and runs)."""
    toolchain = EmulatorToolchain(libraries, only_blocks=last_blocks, count=False)
    io, prepared = given(catalogue, spec_of, name, direction, dims, dtype, toolchain)
    operands = (*io.operands.values(), *prepared.scratch)
    buffers = {t.name: sparse(t.shape, t.dtype.torch_dtype) for t in operands}
    for tensor in io.reads:
        if tensor.dtype.bits > 16 and tensor.fill and not tensor.dtype.epsilon:
            buffers[tensor.name].copy_(tensor.fill(tensor, torch.Generator()))
    return io, buffers, lambda: prepared.bind(buffers, None)()


def test_adamw_8bit_beyond_two_billion(
    catalogue: Catalogue, spec_of: Any, libraries: Libraries
) -> None:
    dims = {"rows": 2**31 // 4096 + 1, "columns": 4096}
    args = (catalogue, spec_of, libraries)
    _, buffers, launch = beyond(*args, "adamw_8bit", "forward", dims, float32)
    tail = {name: value.flatten()[-256:] for name, value in buffers.items() if "scale" not in name}
    tail["p"].normal_()
    tail["g"].normal_()
    launch()
    exact = adamw.whole(tail["p"], tail["g"], torch.zeros(256), torch.zeros(256))
    torch.testing.assert_close(tail["new_p"], exact[0])
    assert tail["new_m"].abs().max() == 127 and tail["new_r"].max() == 255
    torch.testing.assert_close(buffers["new_m_scale"][-1], exact[1].abs().max() / 127)


def test_gradients_beyond_two_billion(
    catalogue: Catalogue, spec_of: Any, libraries: Libraries
) -> None:
    dims = LLAMA | {"layers": 10, "vocabulary": 0}
    args = (catalogue, spec_of, libraries)
    io, buffers, launch = beyond(*args, "grad_clip", "forward", dims, bfloat16)
    assert io.reads[0].elements > 2**31
    g, y = buffers["g"][-1024:], buffers["y"][-1024:]
    g.normal_()
    buffers["norm"].fill_(4.0)
    launch()
    assert torch.equal(y[-1:], (g * 0.25)[-1:])

    io, buffers, launch = beyond(*args, "grad_norm", "forward", dims, bfloat16)
    buffers["g"][-4096:].normal_()  # the norm behind the last layer
    launch()
    expected = buffers["g"][-4096:].float().square().sum()
    torch.testing.assert_close(buffers["squares"][-1], expected)


def test_rows_of_tables_beyond_two_billion(
    catalogue: Catalogue, spec_of: Any, libraries: Libraries
) -> None:
    args = (catalogue, spec_of, libraries)
    rows = 2**31 // 4096 + 2
    dims = {"tokens": 2, "vocabulary": rows, "columns": 4096}
    _, buffers, launch = beyond(*args, "embedding", "forward", dims, bfloat16)
    buffers["table"][-1].normal_()  # of the first token
    buffers["index"][1] = rows - 1
    launch()
    assert torch.equal(buffers["y"][1], buffers["table"][-1])

    dims = {"tokens": 2 * rows, "vocabulary": 50257, "columns": 4096}
    _, buffers, launch = beyond(*args, "embedding", "forward", dims, bfloat16)
    buffers["table"][0].normal_()  # of the last token
    launch()
    assert torch.equal(buffers["y"][-1], buffers["table"][0])

    _, buffers, launch = beyond(*args, "embedding", "backward", dims, bfloat16)
    last = (2 * rows - 1) // 32 * 32  # the last piece: its rows, but for one that begins before
    places, slots = buffers["order"][last:], buffers["slots"][last:]
    whole = slots > buffers["slots"][last - 1]
    assert places[whole].max() > rows
    for token in places:
        buffers["dy"][token].normal_()
    begun = int(slots[whole][0])
    exact = torch.zeros(len(buffers["dtable"]) - begun, 4096, dtype=torch.float64)
    exact.index_add_(0, slots[whole].long() - begun, buffers["dy"][places[whole]].double())
    launch()
    got = buffers["dtable"][begun:].double()
    torch.testing.assert_close(got, exact, rtol=2.0**-7, atol=2.0**-7)
