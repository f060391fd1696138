"""Pooling of NHWC images in CuPy."""

from __future__ import annotations

from ..backends.cupy_pool import prepare_pool
from ..spec import Prepared, Spec


def prepare(direction: str, spec: Spec) -> Prepared:
    maximum = spec.operation.name == "max_pool2d_nhwc"
    return prepare_pool(spec, maximum=maximum, channels_last=True)
