"""Optimizers and gradients of a model: PyTorch's own, values that break formulas, large indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, nan
from typing import Any

import pytest
import torch
from membound.kernels.discovery import Catalogue
from membound.kernels.dtypes import DType, bfloat16, float32, int8, uint8
from membound.kernels.operation import Tensor
from membound.kernels.tolerance import compare, tolerance
from membound.kernels.training import adamw, adamw_8bit, sgd
from membound.kernels.training.grad_norm import PIECE, parameter_sizes
from membound.tests.emulator.run import beyond, prepare, run_cuda, spec_of
from membound.tests.emulator.toolchain import Libraries, Planner

Run = Callable[..., dict[str, torch.Tensor]]
STEPS: list[tuple[str, int]] = [("adamw", 512), ("adamw_8bit", 512), ("sgd_momentum", 512)]
MODEL = ("grad_norm", "grad_clip")
GPT2 = {"layers": 12, "hidden": 3072, "features": 768, "keys": 768}
GPT2 |= {"vocabulary": 50257, "positions": 1024}
LLAMA = {"layers": 32, "hidden": 14336, "features": 4096, "keys": 1024}
LLAMA |= {"vocabulary": 128256, "positions": 0}
SMALL_MODEL = {"layers": 1, "hidden": 4, "features": 4, "keys": 4, "vocabulary": 3, "positions": 0}


ASKED: list[tuple[str, Mapping[str, int], DType]] = [
    *((name, {"rows": 1, "columns": n}, float32) for name, n in STEPS),
    *((name, SMALL_MODEL, dtype) for name in MODEL for dtype in (float32, bfloat16)),
]


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    planned = Libraries()
    for name, dims, dtype in ASKED:
        prepare(spec_of(name, "forward", dims, dtype), Planner(planned))
    planned.compile()
    return planned


@pytest.fixture
def run(libraries: Libraries) -> Run:
    """Outputs by name, of an operation at these dims and float32 inputs."""

    def run_one(
        name: str, dims: Mapping[str, int], inputs: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        return run_cuda(libraries, spec_of(name, "forward", dims, float32), inputs)

    return run_one


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
    out = run("adamw", {"rows": 1, "columns": 6}, {"p": p, "g": g, "m": zero, "v": zero})
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
    return run("adamw_8bit", {"rows": shape[0], "columns": shape[1]}, inputs)


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
    out = run("grad_norm", SMALL_MODEL, {"g": g, **tables})
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
    y = run("grad_clip", SMALL_MODEL, {"g": g, "norm": torch.tensor([norm])})["y"]
    expected = g * factor
    torch.testing.assert_close(y, expected, rtol=2e-6, atol=0, equal_nan=True)
    if norm < 1:
        assert torch.equal(y, g)


# Beyond 2^31 elements, in memory that hardly exists: only the last blocks of a grid run.


def test_adamw_8bit_beyond_two_billion(libraries: Libraries) -> None:
    dims = {"rows": 2**31 // 4096 + 1, "columns": 4096}
    buffers, launch = beyond(libraries, spec_of("adamw_8bit", "forward", dims, float32))
    tail = {name: value.flatten()[-256:] for name, value in buffers.items() if "scale" not in name}
    tail["p"].normal_()
    tail["g"].normal_()
    launch()
    exact = adamw.whole(tail["p"], tail["g"], torch.zeros(256), torch.zeros(256))
    torch.testing.assert_close(tail["new_p"], exact[0])
    assert tail["new_m"].abs().max() == 127 and tail["new_r"].max() == 255
    torch.testing.assert_close(buffers["new_m_scale"][-1], exact[1].abs().max() / 127)


def test_gradients_beyond_two_billion(libraries: Libraries) -> None:
    dims = LLAMA | {"layers": 10, "vocabulary": 0}
    buffers, launch = beyond(libraries, spec_of("grad_clip", "forward", dims, bfloat16))
    assert buffers["g"].numel() > 2**31
    g, y = buffers["g"][-1024:], buffers["y"][-1024:]
    g.normal_()
    buffers["norm"].fill_(4.0)
    launch()
    assert torch.equal(y[-1:], (g * 0.25)[-1:])

    buffers, launch = beyond(libraries, spec_of("grad_norm", "forward", dims, bfloat16))
    buffers["g"][-4096:].normal_()  # the norm behind the last layer
    launch()
    expected = buffers["g"][-4096:].float().square().sum()
    torch.testing.assert_close(buffers["squares"][-1], expected)
