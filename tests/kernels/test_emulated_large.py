"""Indexing beyond 2^31 elements, in tensors that have addresses but hardly any memory.

Only the last block of every grid runs. It has elements beyond 2^31, and their results are compared;
an index that wrapped is outside of every tensor, or leaves nothing where it should. CI takes the
kernels that between them reach every header, `make audit` all.
"""

from __future__ import annotations

import os
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy
import pytest
import torch
from membound.kernels import dtypes
from membound.kernels.backends.cuda import Geometry
from membound.kernels.discovery import discover
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.spec import Spec
from membound.kernels.target import reference_target
from membound.kernels.tolerance import compare, tolerance
from membound.tests.emulator.cases import Case, cases, of_every_header, sparse
from membound.tests.emulator.toolchain import (
    EmulatorError,
    EmulatorToolchain,
    Libraries,
    Planner,
)

BEYOND = 2**31
CHECKED = 2**22
"""Elements beyond `BEYOND`, all of them random; what comes before is zero."""

NOT_ENLARGED = {
    "amax": "its blocks walk over the whole tensor, and the last one only joins their results",
    "adamw_8bit": "its blocks of 256 know no rows: test_training.py goes beyond",
    "grad_norm": "its last block is that of a few tensors: test_training.py goes beyond",
    "grad_clip": "its arena is as long as a model has parameters: test_training.py goes beyond",
    "embedding": "its backward sorts tokens: test_embedding.py goes beyond",
    **{
        f"adamw_8bit_{way}_{moment}": "its blocks are those of adamw_8bit"
        for way in ("decode", "encode")
        for moment in ("m", "v")
    },
    "gather_int32": "its index has 32 bits, and its random reads would fill the sparse tensor",
    "gather_int64": "its random reads would fill the sparse tensor",
    "batch_norm": "its statistics are of all images: see test_batch_norm.py",
    "batch_norm_relu": "its statistics are of all images: see test_batch_norm.py",
    "batch_norm_add_relu": "its statistics are of all images: see test_batch_norm.py",
    "batch_norm_nhwc": "its statistics are of all images: see test_batch_norm.py",
    "transpose": "its last block writes one tile of columns, all over the sparse tensor",
}
"""Operations whose last block does not keep to the last rows, each with its reason."""

TOGETHER = {
    ("group_norm", "backward"): "it needs sums that other blocks leave: see test_batch_norm.py",
    ("instance_norm", "backward"): "it needs sums that other blocks leave: see test_batch_norm.py",
}
"""(operation, direction) of which one block by itself says nothing, each with its reason."""

SAME_INDEXING = {
    **{f"quantize_{form}": "quantize_nvfp4" for form in ("e4m3", "e5m2")},
    **{f"quantize_mxfp8_{way}": "quantize_nvfp4" for way in ("floor", "up")},
    **{f"quantize_mxfp4_{way}": "quantize_nvfp4" for way in ("floor", "up")},
    **{f"swiglu_quantize_{form}": "quantize_nvfp4" for form in ("e4m3", "nvfp4")},
    "quantize_int8_rows": "quantize_e4m3_rows",
    **{f"dequantize_{form}": "dequantize_e4m3_rows" for form in ("e4m3", "e5m2", "int8_rows")},
    **{f"dequantize_{form}": "dequantize_e4m3_rows" for form in ("mxfp8", "mxfp4", "nvfp4")},
    "prune_2_4": "compress_2_4",
    "prune_compress_2_4": "compress_2_4",
    **{f"rms_norm_quantize_{form}": "add_rms_norm_quantize_nvfp4" for form in ("e4m3", "nvfp4")},
    "add_rms_norm_quantize_e4m3": "add_rms_norm_quantize_nvfp4",
}
"""Operations left out because another one, which is not, has their indices."""

WRONG = Path(__file__).parent.parent / "emulator" / "wrong.cu"


def enlarged(case: Case) -> Case:
    """The case with its leading extent so long that its widest tensor exceeds 2^31 elements."""
    spec, operation = shortened(case.spec), case.spec.operation
    one = max(prod(t.shape[1:]) for t in spec.io.operands.values() if t.batched_over == batch(spec))
    dims = {**spec.dims, batch(spec): BEYOND // one + tail(one)}
    io = operation.directions(dims, spec.dtype).get(spec.direction)
    assert io is not None
    target = reference_target("sm_90")
    large = Spec(operation, spec.direction, dims, spec.dtype, io, target)
    return Case(case.implementation, large, case.kind)


def shortened(spec: Spec) -> Spec:
    """Rows so short that there are more of them to check than blocks in a persistent grid."""
    if spec.dims.get("columns", 0) <= 4096:
        return spec
    dims = {**spec.dims, "columns": 4096}
    io = spec.operation.directions(dims, spec.dtype).get(spec.direction)
    assert io is not None
    return replace(spec, dims=dims, io=io)


def tail(elements: int) -> int:
    return max(2, CHECKED // elements)


def batch(spec: Spec) -> str:
    assert spec.io.batch is not None
    return spec.io.batch


def large_cases() -> list[Case]:
    found: dict[tuple[str, str], Case] = {}
    for case in cases(discover()):
        if case.kind != "scaled" or case.spec.dtype != dtypes.bfloat16 or case.spec.variant:
            continue
        if case.spec.operation.name in {*NOT_ENLARGED, *SAME_INDEXING}:
            continue
        if (case.spec.operation.name, case.spec.direction) in TOGETHER:
            continue
        if case.spec.io.batch is None:  # no extent that can grow by itself: see test_copy_family.py
            continue
        found.setdefault((case.spec.operation.name, case.spec.direction), enlarged(case))
    return list(found.values())


LARGE = large_cases()
CASES = LARGE if os.environ.get("MEMBOUND_AUDIT") == "all" else of_every_header(LARGE)


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    planned = Libraries()
    for case in CASES:
        case.on(Planner(planned))
    planned.plan(WRONG, ["right", "counts_in_32_bits"], None)
    planned.compile()
    return planned


def last_block(geometry: Geometry) -> list[int]:
    return [int(geometry.blocks) - 1]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_last_block_is_right_beyond_two_billion_elements(
    case: Case, libraries: Libraries
) -> None:
    io, name = case.spec.io, batch(case.spec)
    prepared = case.on(EmulatorToolchain(libraries, only_blocks=last_block, count=False))
    operands = (*io.operands.values(), *prepared.scratch)
    buffers = {t.name: sparse(t.shape, t.dtype.torch_dtype) for t in operands}
    one = max(prod(t.shape[1:]) for t in io.operands.values() if t.batched_over == name)
    checked = tail(one)
    operation, dtype = case.spec.operation, case.spec.dtype
    dims = {**case.spec.dims, name: checked}
    inputs = make_inputs(operation, case.spec.direction, dims, dtype, seed=2)
    for tensor in io.reads:
        large = buffers[tensor.name]
        (large[-checked:] if tensor.batched_over == name else large).copy_(inputs[tensor.name])
    prepared.bind(buffers, None)()
    small = operation.directions(dims, dtype).get(case.spec.direction)
    assert small is not None
    exact = evaluate(small, inputs, first=case.spec.dims[name] - checked)
    for tensor in io.writes:
        if tensor.batched_over == name:
            stored = buffers[tensor.name][-checked:]
            got = tensor.dtype.decoded(stored)
            written = got != 0
            assert written.any(), f"nothing was written to {tensor.name}"
            expected = exact[tensor.name].double()
            if tensor.dtype.largest:
                scales = buffers[tensor.scaled_by][-checked:] if tensor.scaled_by else None
                own = next(one for one in small.writes if one.name == tensor.name)
                assert compare(own, stored, expected.where(written, 0), scales).ok, tensor.name
                continue
            scale = expected.abs() + expected.square().mean().sqrt()
            error = (got - expected).abs() / scale
            assert error[written].max() <= tolerance(tensor), tensor.name


def test_what_is_not_enlarged_is_listed() -> None:
    scaled = [case.spec for case in cases(discover()) if case.kind == "scaled"]
    left_out = {spec.operation.name for spec in scaled if spec.io.batch is None}
    assert left_out == set(NOT_ENLARGED)


@pytest.mark.parametrize("name", ["right", "counts_in_32_bits"])
def test_an_index_of_32_bits_is_caught(name: str, libraries: Libraries) -> None:
    n = BEYOND + 300
    x, y = sparse((n,), torch.float32), sparse((n,), torch.float32)
    x[-1] = 7.0
    toolchain = EmulatorToolchain(libraries, only_blocks=last_block, count=False)
    (kernel,) = toolchain.build(WRONG, [name], reference_target("sm_90"))
    launch = kernel.bind(None, Geometry(-(-n // 256), 256), (y, x, numpy.int64(n)))
    if name == "right":
        launch()
        assert y[-1] == 7.0
    else:
        with pytest.raises(EmulatorError, match="of 4 bytes at byte -"):
            launch()
