"""SGD in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_optimizer import prepare_update
from ..spec import Prepared, Spec
from .sgd import MOMENTUM, RATE

_SOURCE = Path(__file__).with_name("sgd.cu")
_RULES = {"sgd": "Sgd", "momentum": "Momentum", "sgd_momentum": "SgdMomentum"}


def prepare(direction: str, spec: Spec) -> Prepared:
    rule = _RULES[spec.operation.name]
    return prepare_update(spec, _SOURCE, "sgd", rule, (RATE, MOMENTUM), places=2)
