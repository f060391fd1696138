"""SwiGLU and quantization in one Triton kernel."""

from __future__ import annotations

from ..activation.gated_triton import swiglu
from ..quantization.quantize_triton import quantize_run
from ..spec import Prepared, Spec


def prepare(direction: str, spec: Spec) -> Prepared:
    code, scales = ("e2m1", "e4m3") if "scales" in spec.io.operands else ("e4m3", "given")
    return quantize_run(spec, code, scales, swiglu)
