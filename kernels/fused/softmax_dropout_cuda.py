"""Softmax and dropout in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_row_map import prepare_map
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("softmax_dropout.cu")
_DRAWING = 8  # registers: what is kept, beside exponentials that wait


def prepare(direction: str, spec: Spec) -> Prepared:
    forward = direction == "forward"
    return prepare_map(
        spec,
        _SOURCE,
        f"softmax_dropout_{direction}",
        lambda data, extents: [*data, *extents[:3]],
        streams=1 if forward else 2,
        unpacked=forward,
        more=_DRAWING if forward else 0,
    )
