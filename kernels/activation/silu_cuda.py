"""SiLU in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda import TYPES
from ..backends.cuda_elementwise import prepare_elementwise
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("silu.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    silu = f"Silu<{TYPES[spec.dtype.name]}>"
    return prepare_elementwise(
        spec, _SOURCE, silu if direction == "forward" else f"Gradient<{silu}>"
    )
