"""Run Liger-Kernel's kernels in Triton's interpreter and judge them as a run judges them.

`TRITON_INTERPRET=1 python -P tests/kernels/liger_cases.py [OPERATION...]`, a process of its own,
prints one JSON object: case -> what is said of it: "ok", "refused: …", or what is wrong.

The interpreter of Triton 3.7 lacks two things that these kernels use: a float argument is no tensor
to it, and functions of libdevice give nothing. Both are lent to it here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import triton.language as tl
from membound.bench.verify import verify
from membound.kernels.discovery import Catalogue, discover
from membound.kernels.dtypes import DType, float16, float32
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.operation import DIRECTIONS, DirectionName, Operation, Tensor
from membound.kernels.spec import CannotPrepare, Spec
from membound.kernels.target import Target
from triton.runtime import interpreter

CPU = Target(kind="cpu", arch="x86_64", multiprocessors=1, llc_bytes=1 << 20)
ROWS = [{"rows": 5, "columns": 96}, {"rows": 3, "columns": 1025}]
SHAPES: Mapping[str, list[dict[str, int]]] = {
    "group_norm": [{"images": 2, "channels": 12, "height": 5, "width": 7, "groups": 3}],
    "rope_half": [{"positions": 3, "q_heads": 5, "k_heads": 2, "width": 12}],
}


def lend() -> None:
    """What the interpreter lacks."""
    converted = interpreter._implicit_cvt

    def with_floats(argument: Any) -> Any:
        if isinstance(argument, float):
            value = interpreter.TensorHandle(np.array([argument], np.float32), tl.float32)
            return tl.tensor(value, tl.float32)
        return converted(argument)

    interpreter._implicit_cvt = with_floats
    from liger_kernel.ops import fused_add_rms_norm, group_norm, layer_norm, rms_norm

    for module in (fused_add_rms_norm, group_norm, layer_norm, rms_norm):
        module.rsqrt = lambda value: tl.rsqrt(value)  # looked up once Triton has replaced it


def blank(tensor: Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype.torch_dtype)


def said(
    catalogue: Catalogue,
    operation: Operation,
    direction: DirectionName,
    dims: Mapping[str, int],
    dtype: DType,
) -> str:
    implementation = catalogue.default(operation.name, "liger")
    assert implementation is not None
    reason = implementation.refuses(direction, dtype.name)
    if reason:
        return f"refused: {reason}"
    io = operation.directions(dims, dtype).get(direction)
    assert io is not None
    try:
        prepared = implementation.prepare(Spec(operation, direction, dims, dtype, io, CPU))
    except CannotPrepare as error:
        return f"refused: {error}"
    inputs = make_inputs(operation, direction, dims, dtype, seed=3)
    buffers = {name: value.clone() for name, value in inputs.items()}
    buffers |= {tensor.name: blank(tensor) for tensor in (*io.outputs, *prepared.scratch)}
    launch = prepared.bind(buffers, None)
    exact = evaluate(io, inputs)
    judged = verify(io, launch, buffers, inputs, exact, lambda: None, blank, prepared)
    return judged.reason or "ok"


def cases(names: list[str]) -> Iterator[tuple[str, str]]:
    catalogue = discover()
    for operation in catalogue.operations.values():
        if catalogue.default(operation.name, "liger") is None or (
            names and operation.name not in names
        ):
            continue
        for dtype in (float32, float16):
            for direction in filter(operation.has, DIRECTIONS):
                for dims in SHAPES.get(operation.name, ROWS):
                    shape = "x".join(map(str, dims.values()))
                    case = f"{operation.name}/{direction}/{dtype}/{shape}"
                    yield case, said(catalogue, operation, direction, dims, dtype)


if __name__ == "__main__":
    lend()
    print(json.dumps(dict(cases(sys.argv[1:]))))
