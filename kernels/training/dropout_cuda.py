"""Dropout in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_dropout import prepare_dropout
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("dropout.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_dropout(direction, spec, _SOURCE)
