"""Layer normalization on the host: three passes over a row, two of them from the cache."""

from __future__ import annotations

from ..backends.cpu import refuses as refuses
from ..backends.cpu_norm import prepare_norm_forward
from ..backends.cpu_norm_backward import prepare_norm_backward
from ..spec import Prepared, Spec
from .layer_norm import EPS


def prepare(direction: str, spec: Spec) -> Prepared:
    if direction == "forward":
        return prepare_norm_forward(spec, EPS)
    return prepare_norm_backward(spec, normed="x")
