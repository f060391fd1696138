"""Run the kernels of one backend without a GPU and compare them with float64.

`python -P tests/kernels/gpu_cases.py BACKEND` (a process of its own, since interpreters and
simulators must be chosen before their packages are imported) prints one JSON object: case -> reason
it is wrong, or null. Every operation of the catalogue × direction × dtype × a small shape of every
kind, with poisoned outputs and scratch, inputs compared with themselves afterwards.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, nan
from typing import Any

import torch
from membound.kernels import dtypes
from membound.kernels.discovery import Implementation, discover
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.operation import DIRECTIONS, Direction, DirectionName, Operation, Tensor
from membound.kernels.spec import Prepared, Spec
from membound.kernels.target import Target, reference_target
from membound.kernels.tolerance import compare
from membound.tests.kernels.stand_ins import interpret, on_host, simulate

ALL = os.environ.get("MEMBOUND_AUDIT") == "all"
POOLED = ("images", "channels", "height", "width", "kernel", "stride", "padding")
BLOCKS = [{"rows": 3, "columns": 96}, {"rows": 0, "columns": 32}]
EVERY = {"rows": 64, "columns": 1024}  # of every value of 16 bits, where those are encoded:
ENCODED = tuple(f"quantize_{form}" for form in ("e4m3", "e5m2", "mxfp8_up", "mxfp4_up", "nvfp4"))
HEADS = [
    {"positions": 3, "q_heads": 5, "k_heads": 2, "width": 12},
    {"positions": 1, "q_heads": 1, "k_heads": 1, "width": 2},
]
SQUARES = [{"matrices": 2, "columns": 33}, {"matrices": 0, "columns": 4}]
SMALL = {
    "blocks": BLOCKS,
    "squares": SQUARES,
    "heads": HEADS,
    "flat": [
        {"rows": 3, "columns": 6001},
        {"rows": 3, "columns": 5},
        {"rows": 0, "columns": 40},
    ],
    "rows": [
        {"rows": 4, "columns": 1025},
        {"rows": 37, "columns": 24},
        {"rows": 5, "columns": 4096},
        {"rows": 1, "columns": 768},
        {"rows": 3, "columns": 5},
        {"rows": 2, "columns": 1},
        {"rows": 0, "columns": 40},
        {"rows": 3, "columns": 20_001},
    ],
    "images": [
        dict(zip(POOLED, lengths, strict=True))
        for lengths in (
            (2, 3, 11, 13, 3, 2, 1),
            (1, 4, 12, 12, 2, 2, 0),
            (2, 3, 16, 16, 3, 2, 1),
            (1, 1, 1, 1, 1, 1, 0),
            (2, 3, 5, 7, 3, 1, 0),
            (2, 3, 4, 4, 2, 2, 1),
            (1, 8, 9, 8, 2, 3, 1),
            (0, 3, 4, 4, 2, 2, 0),
        )
    ],
}
# Numba's simulator runs warps of 4 threads: rows of every kind are an eighth as long.
SIMULATED = {
    "blocks": BLOCKS,
    "squares": SQUARES,
    "heads": HEADS,
    "flat": [{"rows": 2, "columns": 300}, {"rows": 3, "columns": 5}, {"rows": 0, "columns": 40}],
    "rows": [
        {"rows": 2, "columns": 129},
        {"rows": 19, "columns": 24},
        {"rows": 3, "columns": 5},
        {"rows": 0, "columns": 40},
        {"rows": 1, "columns": 600},
    ],
    "images": [*SMALL["images"][:2], *SMALL["images"][3:5], SMALL["images"][-1]],
}
OPERATIONS = (
    "copy", "scale", "add", "triad", "fill", "read",
    "silu", "rms_norm", "max_pool2d", "add_rms_norm",
)  # fmt: skip
# CuPy's text knows no layouts: an odd length, many rows, none.
HOSTED = {
    "blocks": BLOCKS,
    "squares": SQUARES,
    "heads": HEADS,
    "flat": [{"rows": 3, "columns": 2001}, {"rows": 3, "columns": 5}, {"rows": 0, "columns": 40}],
    "rows": [{"rows": 4, "columns": 1025}, {"rows": 37, "columns": 24}, {"rows": 0, "columns": 40}],
    "images": [*SMALL["images"][:5], SMALL["images"][-1]],
}
MIXES = ("mix_1r0w", "mix_3r1w", "mix_2r1w", "mix_1r1w", "mix_0r1w")
ACTIVATIONS = {
    *("relu", "leaky_relu", "elu", "hardswish", "sigmoid", "tanh"),
    *("silu", "gelu", "gelu_tanh", "mish"),
}
SPECIAL = (-inf, inf, nan, -0.0, 60.0, -60.0, 3e38, -3e38, 89.0, -89.0)
LONG = ("read", "rms_norm", "layer_norm", "softmax")  # rows beyond a tile: slow, one of a kind
SHOWN = ("copy", "read", "rms_norm", "softmax", "max_pool2d")  # in CI: what lengths do
WALKED = ("l2_norm", "quantize_int8_rows", "softmax_dropout")  # in Triton, as those but of one row
FULL_DTYPE = dtypes.bfloat16  # the others run at one shape: they differ only where converted


def specs(
    operation: Operation, target: Target, *, toolchain: Any = None
) -> Iterator[tuple[str, Spec]]:
    """(case, spec) for every direction, dtype and shape."""
    for direction in DIRECTIONS:
        if not operation.has(direction):
            continue
        for dtype in operation.dtypes:
            shapes = _shapes(toolchain)[_kind(operation)]
            if toolchain is not None and operation.tier > 1:  # a skeleton of tier 1
                shapes = shapes[:2] if dtype == operation.dtypes[-1] else []
                if shapes and operation.name in ENCODED:
                    shapes = [shapes[0], EVERY]
                if shapes and toolchain is interpret and operation.name in WALKED:
                    shapes = [*shapes, {"rows": 1, "columns": 20_001}]
            elif toolchain is not None and not ALL and operation.name not in SHOWN:
                shapes = shapes[:2]
            converted = dtype != FULL_DTYPE and FULL_DTYPE in operation.dtypes
            if toolchain is not None and converted and operation.name not in OPERATIONS:
                continue  # how types are converted is seen on those
            if operation.name not in LONG + WALKED:
                shapes = [shape for shape in shapes if shape.get("columns", 0) <= 16_384]
            for dims in _fitting(operation, shapes if dtype == FULL_DTYPE else shapes[:1]):
                yield (
                    f"{operation.name}/{direction}/{dtype}/{'x'.join(map(str, dims.values()))}",
                    spec(operation, direction, dtype, dims, target, toolchain),
                )


def _fitting(operation: Operation, shapes: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """`shapes` with the dimensions `operation` has, each once."""
    found: list[dict[str, int]] = []
    for shape in shapes:
        known = {"out_height": 3, "out_width": 5, "groups": 1, **shape}
        dims = {name: known[name] for name in operation.dims}
        if dims not in found:
            found.append(dims)
    return found


def _shapes(toolchain: Any) -> dict[str, list[dict[str, int]]]:
    return SIMULATED if toolchain is simulate else HOSTED if toolchain is on_host else SMALL


def _kind(operation: Operation) -> str:
    for first, kind in (("matrices", "squares"), ("positions", "heads")):
        if first in operation.dims:
            return kind
    if "columns" not in operation.dims:
        return "images"
    try:
        directions = operation.directions({"rows": 2, "columns": 3}, operation.dtypes[0])
    except ValueError:
        return "blocks"
    shapes = {t.shape for t in directions.forward.operands.values()}
    return "flat" if len(shapes) == 1 else "rows"  # rows are nothing to what has one shape


def _has_codes(operation: Operation) -> bool:
    io = operation.directions(operation.shapes[0].dims, operation.dtypes[0]).forward
    return any(tensor.dtype.largest for tensor in io.operands.values())


def spec(
    operation: Operation,
    direction: DirectionName,
    dtype: dtypes.DType,
    dims: Mapping[str, int],
    target: Target,
    toolchain: Any = None,
) -> Spec:
    io = operation.directions(dims, dtype).get(direction)
    assert io is not None
    return Spec(operation, direction, dims, dtype, io, target, toolchain=toolchain)


def check(spec: Spec, prepared: Prepared, stream: Any = None) -> str | None:
    """Why the outputs are wrong; None where every written tensor agrees with float64."""
    inputs = make_inputs(spec.operation, spec.direction, spec.dims, spec.dtype, seed=7)
    if "x" in inputs and inputs["x"].numel() > 3 and spec.operation.name.startswith("max_pool2d"):
        inputs["x"].view(-1)[:3] = torch.tensor([float("-inf"), 2.0, 2.0])  # ties, no maximum
    if spec.operation.name in ACTIVATIONS and "x" in inputs:
        flat = inputs["x"].view(-1)
        flat[: len(SPECIAL)] = torch.tensor(SPECIAL)[: flat.numel()]
    _make_special(spec, inputs)
    exact = evaluate(spec.io, inputs)
    before = {name: value.clone() for name, value in inputs.items()}
    seen = []
    for poison in (0x00, 0xFF):
        made = {t.name: _poisoned(t, poison) for t in (*spec.io.outputs, *prepared.scratch)}
        prepared.bind(inputs | made, stream)()
        seen.append(made)
    for name, value in inputs.items():
        if not _same_bytes(value, before[name]):
            return f"{name} was modified"
    for tensor in spec.io.writes if spec.variant else (*spec.io.writes, *spec.io.saves):
        first, second = (made[tensor.name] for made in seen)
        if not _same_bytes(first, second):
            return f"{tensor.name} depends on what it held before"
        reason = _compare(tensor, seen[0], exact[tensor.name], in_steps=bool(spec.variant))
        if reason:
            return reason
    return None


def _make_special(spec: Spec, inputs: Mapping[str, torch.Tensor]) -> None:
    """Rows that softmax or cross-entropy treat apart from others, where there are three rows, and
    every value that can be encoded, where there are as many."""
    name, columns = spec.operation.name, spec.dims.get("columns", 0)
    if name in ENCODED and inputs["x"].numel() == 1 << 16:
        inputs["x"].view(torch.int16).view(-1)[:] = torch.arange(-(1 << 15), 1 << 15)
    if name.startswith("cross_entropy") and len(inputs["target"]) > 2:
        inputs["target"][:2] = torch.tensor([-100, columns])
    if name in ("log_softmax", "scaled_masked_softmax") and "x" in inputs and columns > 5:
        inputs["x"][0], inputs["x"][1, 1] = -inf, nan
    if name == "causal_softmax":
        above = torch.ones(columns, columns).triu(1).bool()
        inputs["x" if "x" in inputs else "dy"][:, above] = nan


def _compare(
    tensor: Tensor, made: Mapping[str, torch.Tensor], exact: torch.Tensor, *, in_steps: bool
) -> str | None:
    got = made[tensor.name]
    if in_steps or tensor.dtype.largest or tensor.slack:
        scales = made[tensor.scaled_by] if tensor.scaled_by else None
        found = compare(tensor, got, exact, scales)
        return None if found.ok else str(found)
    if not tensor.dtype.epsilon:
        return None if torch.equal(got, exact) else f"{tensor.name} differs"
    finite = exact.isfinite()
    infinite = exact.isinf()
    if not torch.equal(got.double()[infinite], exact[infinite]) or bool(
        (got.isnan() != exact.isnan()).any()
    ):
        return f"{tensor.name}: non-finite values differ"
    error = (got.double() - exact).abs()[finite]
    # Half a unit in the last place, and float32 arithmetic on inputs of about 1.
    bound = 0.51 * tensor.dtype.epsilon * exact.abs()[finite] + 2.0**-20 * tensor.reduces**0.5
    if not bool((error <= bound).all()):
        return f"{tensor.name} is off by {float(error.nan_to_num(torch.inf).max()):.3g}"
    return None


def _poisoned(tensor: Tensor, byte: int) -> torch.Tensor:
    raw = torch.full((tensor.nbytes,), byte, dtype=torch.uint8)
    return raw.view(tensor.dtype.torch_dtype).reshape(tensor.shape)


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


TOOLCHAINS: dict[str, Any] = {"triton": interpret, "numba": simulate, "cupy": on_host}


def results(backend: str, names: tuple[str, ...]) -> dict[str, str | None]:
    catalogue = discover()
    found: dict[str, str | None] = {}
    for asked in names:
        held = asked.removeprefix("wrong:")  # held to a wrong reference: the check must object
        name, _, variant = held.partition(":")
        operation = catalogue.operations[name]
        # Where nothing converts to codes, arithmetic does.
        arch = "sm_80" if _has_codes(operation) else "sm_90"
        # Two multiprocessors: a persistent grid then has rows to walk at these sizes too.
        target = replace(reference_target(arch), multiprocessors=2)
        implementation = _of(catalogue.implementations(operation, (backend,)), backend, variant)
        if implementation is None:
            found[held] = f"no {backend} implementation"
            continue
        cases = specs(operation, target, toolchain=TOOLCHAINS.get(backend))
        for case, one in _of_chain(cases, variant) if variant else cases:
            refused = implementation.refuses(one.direction, one.dtype.name)
            if refused:
                found[f"{case} refused"] = None
                continue
            try:
                prepared = implementation.prepare(one)
                if asked != held:
                    one = replace(one, io=wrong_direction(one.io))
                found[case] = check(one, prepared)
            except Exception as error:
                found[case] = f"{type(error).__name__}: {error}"
    return found


def _of_chain(cases: Iterable[tuple[str, Spec]], variant: str) -> Iterator[tuple[str, Spec]]:
    """The last case of each direction that has elements: the steps have seen the others."""
    last = {
        one.direction: (f"{case}:{variant}", replace(one, variant=variant))
        for case, one in cases
        if one.io.writes[0].elements
    }
    yield from last.values()


def _of(implementations: list[Implementation], backend: str, variant: str) -> Implementation | None:
    found = (i for i in implementations if (i.backend, i.variant) == (backend, variant))
    return next(found, None)


def wrong_direction(io: Direction) -> Direction:
    """The same direction with a reference that is off by one: a correct kernel must fail it."""

    def reference(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = io.reference(*arguments)
        outputs = (result,) if isinstance(result, torch.Tensor) else tuple(result)
        return tuple(output + 1 for output in outputs)

    return replace(io, reference=reference)


if __name__ == "__main__":
    backend, *asked = sys.argv[1:]
    print(json.dumps(results(backend, tuple(asked) or OPERATIONS)))
