"""Group and instance normalization in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_channel_group import prepare_group_norm
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("group_norm.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_group_norm(direction, spec, _SOURCE)
