"""Gradient accumulation in CUDA C++: an addition whose operands differ in width."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_elementwise import prepare_elementwise
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("grad_accumulate.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_elementwise(spec, _SOURCE, "Accumulate")
