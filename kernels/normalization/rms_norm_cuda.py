"""RMSNorm in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_rms import prepare_rms
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("rms_norm.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_rms(direction, spec, _SOURCE)
