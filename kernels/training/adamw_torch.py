"""AdamW in PyTorch, call by call as its eager optimizer runs, on new tensors."""

from __future__ import annotations

from math import sqrt

import torch

from ..backends.torch import Eager, PerOperation
from .adamw import BETA1, BETA2, EPS, RATE, STEP, WEIGHT_DECAY

Real = torch.Tensor


def decay(p: Real) -> Real:
    return p.mul(1 - RATE * WEIGHT_DECAY)


def first_moment(g: Real, m: Real) -> Real:
    return m.lerp(g, 1 - BETA1)


def second_moment(g: Real, v: Real) -> Real:
    return v.mul(BETA2).addcmul_(g, g, value=1 - BETA2)


def step(p: Real, m: Real, v: Real) -> Real:
    denominator = v.sqrt().div_(sqrt(1 - BETA2**STEP)).add_(EPS)
    return p.addcdiv(m, denominator, value=-RATE / (1 - BETA1**STEP))


def whole(p: Real, g: Real, m: Real, v: Real) -> tuple[Real, ...]:
    new_m, new_v = first_moment(g, m), second_moment(g, v)
    return step(decay(p), new_m, new_v), new_m, new_v


def master(p: Real, g: Real, m: Real, v: Real) -> tuple[Real, ...]:
    new_p, new_m, new_v = whole(p, g.float(), m, v)
    return new_p, new_m, new_v, new_p.to(g.dtype)


prepare = PerOperation(
    {
        "adamw": Eager(whole),
        "adamw_master": Eager(master),
        "adamw_decay": Eager(decay),
        "adamw_first_moment": Eager(first_moment),
        "adamw_second_moment": Eager(second_moment),
        "adamw_step": Eager(step),
    }
)
