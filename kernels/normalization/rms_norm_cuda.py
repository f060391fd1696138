"""RMSNorm in CUDA C++."""

from __future__ import annotations

from pathlib import Path

import numpy

from ..backends.cuda_ladder import FORWARD_OF_ROWS, prepare_row_step
from ..backends.cuda_rms import prepare_rms
from ..spec import Prepared, Spec
from .rms_norm import EPS

LADDERS = {"rms_norm": FORWARD_OF_ROWS}

_SOURCE = Path(__file__).with_name("rms_norm.cu")
_LADDER = Path(__file__).with_name("rms_norm_ladder.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    if spec.variant:
        again = spec.io.operands["x"].traffic
        return prepare_row_step(spec, _LADDER, again, numpy.float32(EPS))
    return prepare_rms(direction, spec, _SOURCE)
