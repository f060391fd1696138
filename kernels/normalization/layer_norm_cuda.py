"""Layer normalization in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_ladder import BACKWARD_OF_ROWS, prepare_layer_norm_step
from ..backends.cuda_layer_norm import prepare_layer_norm
from ..spec import Prepared, Spec

LADDERS = {"layer_norm": BACKWARD_OF_ROWS}

_SOURCE = Path(__file__).with_name("layer_norm.cu")
_LADDER = Path(__file__).with_name("layer_norm_ladder.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    if spec.variant:
        return prepare_layer_norm_step(spec, _LADDER)
    return prepare_layer_norm(direction, spec, _SOURCE)
