"""Quantization in CUDA C++."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy
import torch

from ..backends.cuda_quantize import prepare_run
from ..backends.cuda_row_map import prepare_map
from ..spec import Prepared, Spec
from .quantize import SMALLEST

_SOURCE = Path(__file__).with_name("quantize.cu")
_TENSORWISE = {"quantize_e4m3": "E4m3", "quantize_e5m2": "E5m2"}
_MX = {
    "quantize_mxfp8_floor": ("E4m3", "false"),
    "quantize_mxfp8_up": ("E4m3", "true"),
    "quantize_mxfp4_floor": ("E2m1", "false"),
    "quantize_mxfp4_up": ("E2m1", "true"),
}
_ROWWISE = {"quantize_e4m3_rows": ("E4m3", 448.0), "quantize_int8_rows": ("Int8", 127.0)}


def prepare(direction: str, spec: Spec) -> Prepared:
    name = spec.operation.name
    if name in _TENSORWISE:
        options = [_TENSORWISE[name], "AsIs"]
        return prepare_run(spec, _SOURCE, "quantize_by_tensor", options, ["q", "scale"], ["x"])
    if name in _MX:
        before = ["q", "scales"]
        return prepare_run(spec, _SOURCE, "quantize_by_mx_block", _MX[name], before, ["x"])
    if name == "quantize_nvfp4":
        before = ["q", "scales", "scale"]
        return prepare_run(spec, _SOURCE, "quantize_by_nv_block", ["AsIs"], before, ["x"])
    return _by_row(spec, *_ROWWISE[name])


def _by_row(spec: Spec, code: str, largest: float) -> Prepared:
    def arguments(
        data: Sequence[torch.Tensor], extents: Sequence[numpy.generic]
    ) -> Sequence[torch.Tensor | numpy.generic]:
        rows, columns, shift, _ = extents
        limits = numpy.float32(largest), numpy.float32(SMALLEST)
        return [*data, rows, columns, shift, *limits]

    return prepare_map(spec, _SOURCE, "quantize_rows", arguments, code, streams=1)
