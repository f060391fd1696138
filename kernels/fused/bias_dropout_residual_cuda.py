"""Bias, dropout and residual in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_dropout import prepare_dropout
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("bias_dropout_residual.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_dropout(direction, spec, _SOURCE)
