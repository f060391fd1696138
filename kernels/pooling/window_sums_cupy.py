"""Average pooling of NCHW images in CuPy."""

from __future__ import annotations

from ..backends.cupy_pool import prepare_pool
from ..spec import Prepared, Spec

LACKS = {
    "adaptive_avg_pool2d": "adaptive_avg_pool2d is of tier 2: in CUDA C++, Triton and torch",
    "lp_pool2d": "lp_pool2d is of tier 3: in CUDA C++ and torch",
}


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_pool(spec, maximum=False, channels_last=False)
