"""Conversions on the host: what loads and stores do anyway."""

from __future__ import annotations

from ..backends.cpu import refuses as refuses
from ..backends.cpu_loops import prepare_elementwise
from ..spec import Prepared, Spec
from .stream_cpu import copied


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_elementwise(spec, copied)
