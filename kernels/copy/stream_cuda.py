"""The copy family in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_elementwise import prepare_elementwise
from ..backends.cuda_ladder import prepare_copy_step
from ..backends.cuda_row_sum import prepare_row_sum
from ..ladder import Ladder
from ..spec import Prepared, Spec

LADDERS = {"copy": Ladder("forward", ("naive", "vector", "unrolled"))}

_SOURCE = Path(__file__).with_name("stream.cu")
_LADDER = Path(__file__).with_name("stream_ladder.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    if spec.variant:
        return prepare_copy_step(spec, _LADDER)
    if spec.operation.name == "read":
        return prepare_row_sum(spec, _SOURCE)
    return prepare_elementwise(spec, _SOURCE, spec.operation.name.capitalize())
