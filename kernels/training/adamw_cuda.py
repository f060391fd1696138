"""AdamW in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_optimizer import prepare_update
from ..spec import Prepared, Spec
from .adamw import numbers

_SOURCE = Path(__file__).with_name("adamw.cu")
_RULES = {
    "adamw": "AdamW",
    "adamw_master": "AdamW",
    "adamw_decay": "Decay",
    "adamw_first_moment": "FirstMoment",
    "adamw_second_moment": "SecondMoment",
    "adamw_step": "Step",
}


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_update(spec, _SOURCE, "adamw", _RULES[spec.operation.name], numbers(), places=4)
