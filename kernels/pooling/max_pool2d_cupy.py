"""Max-pooling of NCHW images in CuPy."""

from __future__ import annotations

from ..backends.cupy_pool import prepare_pool
from ..spec import Prepared, Spec


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_pool(spec, maximum=True, channels_last=False)
