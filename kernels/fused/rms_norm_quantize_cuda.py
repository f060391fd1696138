"""RMSNorm and quantization in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_quantize import prepare_norm
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("rms_norm_quantize.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_norm(spec, _SOURCE)
