"""Max-pooling in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_ladder import prepare_max_pool_step
from ..backends.cuda_pool import prepare_pool
from ..ladder import Ladder
from ..spec import Prepared, Spec

LADDERS = {"max_pool2d": Ladder("forward", ("naive", "shared", "vector"))}

_SOURCE = Path(__file__).with_name("max_pool2d.cu")
_LADDER = Path(__file__).with_name("max_pool2d_ladder.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    """Raises CannotPrepare where it does not compile or no grid is large enough."""
    if spec.variant:
        return prepare_max_pool_step(spec, _LADDER)
    if direction == "forward":
        (x,) = spec.io.reads
        return prepare_pool(direction, spec, _SOURCE, "Max", x, spec.io.outputs)
    (dx,) = spec.io.writes
    return prepare_pool(direction, spec, _SOURCE, "MaxGradient", dx, spec.io.reads)
