"""SwiGLU and quantization in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda import TYPES
from ..backends.cuda_quantize import prepare_run
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("swiglu_quantize.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    swiglu, inputs = f"Swiglu<{TYPES[spec.dtype.name]}>", ["gate", "up"]
    if "scales" in spec.io.operands:
        before = ["q", "scales", "scale"]
        return prepare_run(spec, _SOURCE, "quantize_by_nv_block", [swiglu], before, inputs)
    before = ["q", "scale"]
    return prepare_run(spec, _SOURCE, "quantize_by_tensor", ["E4m3", swiglu], before, inputs)
