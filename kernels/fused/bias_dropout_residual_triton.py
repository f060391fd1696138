"""Bias, dropout and residual in one Triton kernel."""

from __future__ import annotations

from ..backends.triton_dropout import prepare_dropout
from ..spec import Prepared, Spec


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_dropout(direction, spec)
