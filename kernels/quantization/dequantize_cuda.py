"""Dequantization in CUDA C++."""

from __future__ import annotations

from pathlib import Path

import numpy

from ..backends.cuda import vector_bytes
from ..backends.cuda_quantize import prepare_run
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("dequantize.cu")
_KERNELS = {
    "dequantize_e4m3": ("dequantize_by_tensor", "E4m3"),
    "dequantize_e5m2": ("dequantize_by_tensor", "E5m2"),
    "dequantize_e4m3_rows": ("dequantize_by_row", "E4m3"),
    "dequantize_int8_rows": ("dequantize_by_row", "Int8"),
    "dequantize_mxfp8": ("dequantize_by_mx_block", "E4m3"),
    "dequantize_mxfp4": ("dequantize_by_mx_block", "E2m1"),
    "dequantize_nvfp4": ("dequantize_by_nv_block", "E2m1"),
}


def prepare(direction: str, spec: Spec) -> Prepared:
    kernel, code = _KERNELS[spec.operation.name]
    before = ["y", *(tensor.name for tensor in spec.io.reads)]
    if kernel != "dequantize_by_row":
        return prepare_run(spec, _SOURCE, kernel, [code], before)
    columns = spec.dims["columns"]
    even = columns * spec.dtype.bits % (vector_bytes(spec.target) * 8) == 0
    options, numbers = [code, str(even).lower()], [numpy.int64(columns)]
    return prepare_run(spec, _SOURCE, kernel, options, before, numbers=numbers)
