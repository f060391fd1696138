"""Dropout in Triton."""

from __future__ import annotations

from ..backends.triton_dropout import prepare_dropout
from ..spec import Prepared, Spec


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_dropout(direction, spec)
