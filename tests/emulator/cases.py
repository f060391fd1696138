"""What the emulator runs: every `cuda` implementation that discovery finds."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import torch
from membound.kernels.audit import cases as audit
from membound.kernels.backends.cuda import INCLUDE
from membound.kernels.backends.cuda_nvrtc import read_with_headers
from membound.kernels.discovery import Catalogue
from membound.kernels.dtypes import float16
from membound.kernels.inputs import make_inputs
from membound.kernels.operation import Operation, Tensor
from membound.kernels.shapes import Shape
from membound.kernels.target import Target, reference_target
from membound.tests.emulator.toolchain import Libraries, Planner

_LONG_ROWS = (
    {"rows": 3, "columns": 14336},  # Llama-3-8B's feed-forward
    {"rows": 2, "columns": 20_001},
    {"rows": 2, "columns": 70_000},  # beyond what a block keeps in registers
    {"rows": 70, "columns": 40},  # many short rows: several share a block
)
_FEW_ROWS_ABOVE = 30_000  # columns
_CHANNELS, _GROUPS = 3, 2
_CHANNELS_LAST, _LONGEST_SIDE = 48, 24
"""Of NHWC images: vectors run along the channels, so that these stay as ragged as they were."""
SMALL_H100 = replace(reference_target("sm_90"), multiprocessors=4)
SMALL_GB10 = replace(reference_target("sm_121"), multiprocessors=4)
"""Few enough blocks in a persistent grid that each of them walks several rows. GB10 loads 32 bytes
at once."""

_SMALL = {"rows": 5, "images": 2, "matrices": 2, "tokens": 150, "positions": 7}
_SMALL |= {"layers": 1, "features": 64, "keys": 64, "vocabulary": 97}  # of a model


class Case(audit.Case):
    """A case that has inputs."""

    def inputs(self) -> dict[str, torch.Tensor]:
        return make_inputs(
            self.spec.operation, self.spec.direction, self.spec.dims, self.spec.dtype, seed=3
        )


def cases(
    catalogue: Catalogue, target: Target = SMALL_H100, *, steps: bool = False
) -> Iterator[Case]:
    """Implementation × direction × dtype × shape, of sizes that fibres finish quickly.

    Those of the steps of kernel ladders, or all others.
    """
    for operation in catalogue.operations.values():
        shapes = _shapes(operation)
        for implementation in catalogue.implementations(operation, ("cuda",)):
            if implementation.is_step != steps:
                continue
            for case in audit.cases_of(implementation, shapes, target):
                # As bfloat16: rows of 16 bits.
                if not (case.kind == "long" and case.spec.dtype == float16):
                    yield Case(case.implementation, case.spec, case.kind)


def of_every_header(found: Sequence[Case]) -> list[Case]:
    """Few of these cases that between them reach every header: the one that adds most goes next."""
    reached = {case.name: _headers(case) for case in found}
    kept: list[Case] = []
    missing = set().union(*reached.values())
    while missing:
        kept.append(max(found, key=lambda case: len(reached[case.name] & missing)))
        missing -= reached[kept[-1].name]
    return kept


def _headers(case: Case) -> set[bytes]:
    planned = Libraries()
    case.on(Planner(planned))
    return {
        text
        for source, _ in planned.planned
        for text in read_with_headers(source, [INCLUDE])
        if text != source.read_bytes()
    }


def _shapes(operation: Operation) -> list[tuple[str, Mapping[str, int]]]:
    found: list[tuple[str, Mapping[str, int]]] = [
        (shape.kind, _reduced(shape, operation)) for shape in operation.shapes
    ]
    if operation.dims == ("rows", "columns") and not _flat(operation):
        found += [("long", dims) for dims in _LONG_ROWS if _admits(operation, dims)]
    unique: list[tuple[str, Mapping[str, int]]] = []
    for kind, dims in found:
        if dims not in [known for _, known in unique]:
            unique.append((kind, dims))
    return unique


def _admits(operation: Operation, dims: Mapping[str, int]) -> bool:
    try:
        operation.directions(dims, operation.dtypes[0])
    except ValueError:  # of columns that make no whole blocks, or bytes
        return False
    return True


def _flat(operation: Operation) -> bool:
    """Whether rows are nothing to it: element by element, over one contiguous run."""
    io = operation.directions(operation.shapes[0].dims, operation.dtypes[0]).forward
    shapes = {tensor.shape for tensor in io.operands.values()}
    if operation.family == "quantization":  # unless it finds something for every row
        return not any(t.shape[0] == t.elements and t.batched_over == "rows" for t in io.writes)
    one = {shape for shape in shapes if prod(shape) > 2}  # but for a seed and an offset
    return operation.family in {"copy", "activation", "training"} and len(one) == 1


def _reduced(shape: Shape, operation: Operation) -> dict[str, int]:
    if shape.kind == "edge":
        return shape.dims
    if operation.name.endswith("_nhwc"):
        return _reduced_last(shape.dims)
    dims = {name: min(length, _SMALL.get(name, length)) for name, length in shape.dims.items()}
    if "rows" in dims and dims.get("columns", 0) > _FEW_ROWS_ABOVE:
        dims["rows"] = min(dims["rows"], 2)
    if "matrices" in dims:  # squares: as ragged, or not, as they were
        dims["columns"] = 256 + dims["columns"] % 256
    channels = _CHANNELS * _GROUPS if "groups" in dims else _CHANNELS
    small = {"channels": channels, "groups": _GROUPS}
    return {name: min(length, small.get(name, length)) for name, length in dims.items()}


def _reduced_last(dims: Mapping[str, int]) -> dict[str, int]:
    sides = {n: min(dims[n], _LONGEST_SIDE - dims[n] % 2) for n in ("height", "width")}
    channels = _CHANNELS_LAST + dims["channels"] % 16
    return {**dims, **sides, "images": _SMALL["images"], "channels": channels}


def blank(tensor: Tensor, offset: int = 0) -> torch.Tensor:
    """Uninitialised storage for an operand, `offset` elements beyond an aligned address."""
    item = tensor.dtype.torch_dtype.itemsize
    raw = torch.empty(tensor.nbytes + 256 + offset * item, dtype=torch.uint8)
    start = -raw.data_ptr() % 256 + offset * item
    return raw[start : start + tensor.nbytes].view(tensor.dtype.torch_dtype).reshape(tensor.shape)


def place(tensor: Tensor, value: torch.Tensor, offset: int = 0) -> torch.Tensor:
    return blank(tensor, offset).copy_(value)


def sparse(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros that take memory only where they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = mmap.mmap(-1, max(prod(shape) * dtype.itemsize, 1), flags=flags)
    return torch.frombuffer(memory, dtype=dtype, count=prod(shape)).reshape(tuple(shape))
