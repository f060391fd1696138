"""The float64 references: backward is the derivative of forward, and the corner cases."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, nan
from typing import Any

import pytest
import torch
from membound.kernels.discovery import Catalogue
from membound.kernels.dtypes import DTYPES, float16, float32
from membound.kernels.inputs import evaluate
from membound.kernels.operation import Directions, Tensor

POOL = ("images", "channels", "height", "width", "kernel", "stride", "padding")
IMAGES = POOL[:4]
ADAPTIVE = (*POOL[:4], "out_height", "out_width")
ACTIVATIONS = (
    *("silu", "relu", "leaky_relu", "elu", "hardswish", "sigmoid", "tanh"),
    *("gelu", "gelu_tanh", "mish"),
)
COMBINED = ("swiglu", "geglu", "reglu", "bias_add", "bias_gelu", "bias_relu")
BATCH_NORMS = ("batch_norm", "batch_norm_nhwc", "batch_norm_relu", "batch_norm_add_relu")
CASES: list[tuple[str, dict[str, int]]] = [
    *((name, {"rows": 3, "columns": 5}) for name in (*ACTIVATIONS, *COMBINED)),
    ("rms_norm", {"rows": 4, "columns": 7}),
    ("rms_norm", {"rows": 1, "columns": 2}),
    ("add_rms_norm", {"rows": 4, "columns": 7}),
    ("layer_norm", {"rows": 4, "columns": 7}),
    ("add_layer_norm", {"rows": 4, "columns": 7}),
    ("dropout", {"rows": 4, "columns": 7}),
    ("dropout_byte_mask", {"rows": 4, "columns": 7}),
    ("dropout_bit_mask", {"rows": 3, "columns": 8}),
    ("softmax_dropout", {"rows": 4, "columns": 7}),
    *(
        (name, {"positions": 3, "q_heads": 3, "k_heads": 2, "width": 6})
        for name in ("rope_half", "rope_interleaved")
    ),
    ("bias_dropout_residual", {"rows": 4, "columns": 7}),
    ("bias_dropout_residual_byte_mask", {"rows": 4, "columns": 7}),
    ("bias_dropout_residual_bit_mask", {"rows": 3, "columns": 8}),
    ("softmax", {"rows": 4, "columns": 7}),
    ("log_softmax", {"rows": 4, "columns": 7}),
    ("scaled_masked_softmax", {"rows": 4, "columns": 7}),
    ("causal_softmax", {"matrices": 2, "columns": 5}),
    ("nll_loss", {"rows": 4, "columns": 7}),
    ("nll_loss_smoothed", {"rows": 4, "columns": 7}),
    ("cross_entropy", {"rows": 4, "columns": 7}),
    ("cross_entropy_smoothed", {"rows": 4, "columns": 7}),
    ("l2_norm", {"rows": 4, "columns": 7}),
    *((name, dict(zip(IMAGES, (2, 3, 4, 3), strict=True))) for name in BATCH_NORMS),
    ("instance_norm", dict(zip(IMAGES, (2, 3, 4, 3), strict=True))),
    ("group_norm", dict(zip(IMAGES, (2, 6, 2, 3), strict=True)) | {"groups": 2}),
    ("group_norm", dict(zip(IMAGES, (1, 4, 3, 1), strict=True)) | {"groups": 1}),
    *(
        ("max_pool2d", dict(zip(POOL, values, strict=True)))
        for values in [
            (2, 3, 6, 6, 2, 2, 0),
            (2, 2, 7, 5, 3, 2, 1),  # overlapping windows and padding
            (1, 2, 5, 6, 3, 1, 1),
            (1, 1, 7, 7, 2, 3, 0),  # windows that leave elements out
            (1, 1, 4, 4, 2, 2, 1),
            (1, 1, 1, 1, 1, 1, 0),
        ]
    ),
    *(
        ("avg_pool2d", dict(zip(POOL, values, strict=True)))
        for values in [(2, 3, 6, 6, 2, 2, 0), (2, 2, 7, 5, 3, 2, 1), (1, 1, 7, 7, 2, 3, 0)]
    ),
    *(
        (name, dict(zip(POOL, (2, 3, 7, 5, 3, 2, 1), strict=True)))
        for name in ("avg_pool2d_nhwc", "max_pool2d_nhwc")
    ),
    ("bias_relu_max_pool2d", dict(zip(POOL, (2, 3, 7, 5, 3, 2, 1), strict=True))),
    ("global_avg_pool", dict(zip(IMAGES, (2, 3, 4, 3), strict=True))),
    ("channel_bias_add", dict(zip(IMAGES, (2, 3, 4, 3), strict=True))),
    *(
        ("lp_pool2d", dict(zip(POOL[:-1], values, strict=True)))
        for values in [(2, 3, 6, 6, 2, 2), (1, 2, 7, 5, 3, 2)]
    ),
    *(
        ("adaptive_avg_pool2d", dict(zip(ADAPTIVE, values, strict=True)))
        for values in [(2, 3, 6, 6, 3, 2), (1, 2, 7, 5, 3, 4), (1, 1, 2, 3, 5, 4)]
    ),
]


def exact_inputs(directions: Directions) -> dict[str, torch.Tensor]:
    """Random float64 inputs of forward and the gradients that come back."""
    generator = torch.Generator().manual_seed(3)
    names = {t.name: t.shape for t in directions.forward.reads if t.dtype.epsilon}
    names |= {f"d{t.name}": t.shape for t in directions.forward.writes}
    random = {
        name: torch.randn(shape, dtype=torch.float64, generator=generator)
        for name, shape in names.items()
    }
    return random | {t.name: filled(t, generator) for t in directions.forward.reads if t.fill}


def filled(tensor: Tensor, generator: torch.Generator) -> torch.Tensor:
    assert tensor.fill is not None
    made = tensor.fill(tensor, generator)
    return made.double() if made.is_floating_point() else made


def by_autograd(directions: Directions, values: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Gradients of everything forward reads, by name, and the outputs of forward."""
    forward = directions.forward
    leaves = {t.name: values[t.name].clone() for t in forward.reads}
    result = forward.reference(*(v.requires_grad_(v.is_floating_point()) for v in leaves.values()))
    leaves = {name: value for name, value in leaves.items() if value.requires_grad}
    outputs = [result] if isinstance(result, torch.Tensor) else list(result)
    written = outputs[: len(forward.writes)]
    incoming = [values[f"d{t.name}"] for t in forward.writes]
    gradients = torch.autograd.grad(written, list(leaves.values()), incoming)
    named = {f"d{name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}
    made = zip(forward.outputs, outputs, strict=True)
    return named | {t.name: output.detach() for t, output in made}


@pytest.mark.parametrize(("name", "dims"), CASES)
def test_backward_is_the_derivative_of_forward(
    catalogue: Catalogue, name: str, dims: dict[str, int]
) -> None:
    # float32: what the reference rounds to a dtype then keeps 24 bits, and a rounding has no
    # derivative of its own, so that only tolerances of float32 are asked for below.
    directions = catalogue.operations[name].directions(dims, float32)
    backward = directions.backward
    assert backward is not None
    values = exact_inputs(directions)
    derived = by_autograd(directions, values)
    result = backward.reference(*((derived | values)[t.name] for t in backward.reads))
    results = [result] if isinstance(result, torch.Tensor) else list(result)
    for tensor, got in zip(backward.writes, results, strict=True):
        torch.testing.assert_close(got, derived[tensor.name], rtol=1e-6, atol=1e-6)
        assert tuple(got.shape) == tuple(tensor.shape)


@pytest.mark.parametrize(("name", "dims"), CASES)
def test_the_derivative_of_the_reference_is_that_of_finite_differences(
    catalogue: Catalogue, name: str, dims: dict[str, int]
) -> None:
    directions = catalogue.operations[name].directions(dims, float32)
    forward, backward = directions.forward, directions.backward
    assert backward is not None
    incoming = {tensor.name for tensor in backward.reads}
    outgoing = {tensor.name for tensor in backward.writes}
    if name in {
        "add_rms_norm",
        "add_layer_norm",
        "bias_relu_max_pool2d",
        "batch_norm_add_relu",
    }:  # rounds h, which no finite difference sees
        return
    leaves = [
        filled(t, torch.Generator()).requires_grad_(f"d{t.name}" in outgoing)
        if t.fill
        else torch.randn(t.shape, dtype=torch.float64, requires_grad=True)
        for t in forward.reads
    ]

    def writes(*arguments: torch.Tensor) -> Any:
        result = forward.reference(*arguments)
        results = [result] if isinstance(result, torch.Tensor) else list(result)
        named = zip(forward.writes, results[: len(forward.writes)], strict=True)
        return tuple(value for tensor, value in named if f"d{tensor.name}" in incoming)

    assert torch.autograd.gradcheck(writes, leaves)


def test_every_backward_is_held_to_its_forward(catalogue: Catalogue) -> None:
    with_backward = {o.name for o in catalogue.operations.values() if o.has("backward")}
    assert with_backward == {name for name, _ in CASES} | {"embedding"}  # in test_training.py


def pool(catalogue: Catalogue, *values: int) -> Directions:
    dims = dict(zip(POOL, values, strict=True))
    return catalogue.operations["max_pool2d"].directions(dims, float32)


def pooled(catalogue: Catalogue, x: list[list[float]], *window: int) -> tuple[Any, Any, Any]:
    """(y, offset, dx for dy = 1) of one image."""
    image = torch.tensor(x, dtype=torch.float32)[None, None]
    directions = pool(catalogue, 1, 1, *image.shape[2:], *window)
    assert directions.backward is not None
    outputs = evaluate(directions.forward, {"x": image})
    gradient = {"dy": torch.ones_like(outputs["y"]), "offset": outputs["offset"]}
    dx = evaluate(directions.backward, gradient)["dx"]
    return outputs["y"][0, 0].tolist(), outputs["offset"][0, 0].tolist(), dx[0, 0].tolist()


def test_the_first_maximum_of_a_tie_takes_the_gradient(catalogue: Catalogue) -> None:
    y, offset, dx = pooled(catalogue, [[1, 2], [2, 2]], 2, 2, 0)
    assert (y, offset, dx) == ([[2]], [[1]], [[0, 1], [0, 0]])


def test_gradients_of_overlapping_windows_add_up(catalogue: Catalogue) -> None:
    _, _, dx = pooled(catalogue, [[1.0] * 4] * 4, 3, 1, 0)
    assert dx == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    _, _, dx = pooled(catalogue, [[0, 0, 0], [0, 9, 0], [0, 0, 0]], 2, 1, 0)
    assert dx == [[0, 0, 0], [0, 4, 0], [0, 0, 0]]


@pytest.mark.parametrize("place", range(4))
def test_nan_wins_its_window_and_takes_the_gradient(catalogue: Catalogue, place: int) -> None:
    flat: list[float] = [1, 2, 3]
    flat.insert(place, nan)
    y, offset, dx = pooled(catalogue, [flat[:2], flat[2:]], 2, 2, 0)
    assert y[0][0] != y[0][0] and offset == [[place]]
    assert [*dx[0], *dx[1]] == [float(i == place) for i in range(4)]


def test_a_window_of_minus_infinity_stays_and_has_an_index_inside(catalogue: Catalogue) -> None:
    y, offset, dx = pooled(catalogue, [[-inf, -inf], [-inf, -inf]], 2, 2, 0)
    assert (y, offset, dx) == ([[-inf]], [[0]], [[1, 0], [0, 0]])


def test_padding_never_wins(catalogue: Catalogue) -> None:
    y, offset, _ = pooled(catalogue, [[-5, -5], [-5, -5]], 2, 2, 1)
    assert y == [[-5, -5], [-5, -5]]
    assert offset == [[3, 2], [1, 0]]  # counted from the window's corner in the padding


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ((1, 1, 4, 4, 16, 1, 0), "kernel is 1 to 15"),
        ((1, 1, 4, 4, 2, 0, 0), "stride >= 1"),
        ((1, 1, 4, 4, 2, 2, 2), "padding <= kernel / 2"),
        ((1, 1, 2, 2, 3, 1, 0), "exceeds the padded 2x2 image"),
    ],
)
def test_windows_that_cannot_be_are_named(
    catalogue: Catalogue, dims: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pool(catalogue, *dims)


def rms(catalogue: Catalogue, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    dims = {"rows": x.shape[0], "columns": x.shape[1]}
    forward = catalogue.operations["rms_norm"].directions(dims, float16).forward
    return evaluate(forward, {"x": x, "weight": weight})["y"]


def test_rms_norm_of_squares_that_overflow_fp16(catalogue: Catalogue) -> None:
    x = torch.tensor([[300.0] * 64 + [-300.0] * 64], dtype=torch.float16)
    y = rms(catalogue, x, torch.ones(128, dtype=torch.float16))
    torch.testing.assert_close(y, torch.sign(x).double(), rtol=1e-9, atol=0)


def test_rms_norm_of_a_row_longer_than_fp16_counts(catalogue: Catalogue) -> None:
    x = torch.full((1, 70_000), 2.0, dtype=torch.float16)
    y = rms(catalogue, x, torch.ones(70_000, dtype=torch.float16))
    torch.testing.assert_close(y, torch.ones(1, 70_000).double(), rtol=1e-6, atol=0)


def test_rms_norm_states_its_eps(catalogue: Catalogue) -> None:
    """0.01 / sqrt(1e-4 + 1e-6), neither with float32's epsilon (0.99941) nor with bf16's."""
    y = rms(catalogue, torch.full((1, 8), 0.01).double(), torch.ones(8).double())
    torch.testing.assert_close(y, torch.full((1, 8), 0.995037190).double(), rtol=1e-8, atol=0)


def test_rms_norm_multiplies_by_the_weight_before_it_rounds(catalogue: Catalogue) -> None:
    """Rounding to bf16 first, as Llama does, gives -0.19921875 in the first place."""
    x = torch.tensor([[0.1259765625, -0.1318359375, 0.640625, 0.10498046875]])
    weight = torch.tensor([-0.53515625, 0.361328125, 1.3046875, 0.9453125])
    y = rms(catalogue, x.double(), weight.double()).bfloat16()
    assert y[0].tolist() == [-0.2001953125, -0.1416015625, 2.484375, 0.294921875]


def test_silu_at_the_ends(catalogue: Catalogue) -> None:
    x = torch.tensor([[0.0, -0.0, 100.0, -100.0, inf, -inf, nan]])
    silu = catalogue.operations["silu"].directions({"rows": 1, "columns": 7}, float32)
    y = evaluate(silu.forward, {"x": x})["y"][0]
    assert y[:3].tolist() == [0, 0, 100] and -1e-40 < y[3] < 0 and y[4] == inf
    assert y[5] == 0 and y[5].signbit() and y[6].isnan()
    assert silu.backward is not None
    at = {"dy": torch.ones(1, 7), "x": x}
    dx = evaluate(silu.backward, at)["dx"][0]
    assert dx[:6].tolist() == pytest.approx([0.5, 0.5, 1, 0, 1, 0]) and dx[6].isnan()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_fused_norm_is_of_the_sum_as_it_is_stored(catalogue: Catalogue, dtype: str) -> None:
    dims = {"rows": 4, "columns": 64}
    operations = {
        name: catalogue.operations[name].directions(dims, DTYPES[dtype]).forward
        for name in ("add", "rms_norm", "add_rms_norm")
    }
    torch.manual_seed(0)
    stored = DTYPES[dtype].torch_dtype
    x, residual = (torch.randn(4, 64).to(stored) for _ in range(2))
    weight = torch.randn(64).to(stored)
    fused = evaluate(operations["add_rms_norm"], {"x": x, "residual": residual, "weight": weight})
    h = evaluate(operations["add"], {"a": x, "b": residual})["y"].to(stored)
    y = evaluate(operations["rms_norm"], {"x": h, "weight": weight})["y"]
    assert torch.equal(fused["h"], h.double())
    assert torch.equal(fused["y"], y)


def test_the_copy_family(catalogue: Catalogue) -> None:
    dims = {"rows": 1, "columns": 2}
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, -8.0]])
    expected: dict[str, tuple[dict[str, torch.Tensor], list[float]]] = {
        "copy": ({"x": a}, [1, 2]),
        "scale": ({"x": a}, [1.7109375, 3.421875]),
        "add": ({"a": a, "b": b}, [5, -6]),
        "triad": ({"a": a, "b": b}, [7.84375, -11.6875]),
        "fill": ({}, [0.7109375, 0.7109375]),
        "mix_3r1w": ({"x0": a, "x1": b, "x2": a}, [6, -4]),
        "mix_0r1w": ({}, [0.7109375, 0.7109375]),
    }
    for name, (inputs, values) in expected.items():
        forward = catalogue.operations[name].directions(dims, float32).forward
        assert evaluate(forward, inputs)["y"][0].tolist() == values, name
    for name in ("read", "mix_1r0w"):
        forward = catalogue.operations[name].directions(dims, float32).forward
        assert evaluate(forward, {"x": b})["sums"].tolist() == [-4], name
