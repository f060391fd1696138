"""The read/write mixes in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_elementwise import prepare_elementwise
from ..backends.cuda_row_sum import prepare_row_sum
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("mix.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    if spec.operation.name == "mix_1r0w":
        return prepare_row_sum(spec, _SOURCE)
    return prepare_elementwise(spec, _SOURCE, "Mix")
