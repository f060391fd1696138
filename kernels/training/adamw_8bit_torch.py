"""AdamW with moments of 8 bits in PyTorch: decoded, stepped as in adamw_torch.py, encoded."""

from __future__ import annotations

import torch

from ..backends.torch import Eager
from .adamw_8bit import LARGEST, LARGEST_ROOT, decoded, encoded
from .adamw_torch import whole

Real = torch.Tensor


def forward(p: Real, g: Real, m: Real, r: Real, m_scale: Real, r_scale: Real) -> tuple[Real, ...]:
    v = decoded(r, r_scale, p.dtype).square_()
    new_p, new_m, new_v = whole(p, g, decoded(m, m_scale, p.dtype), v)
    m_codes, new_m_scale = encoded(new_m, LARGEST)
    r_codes, new_r_scale = encoded(new_v.sqrt_(), LARGEST_ROOT)
    codes = m_codes.round_().to(torch.int8), r_codes.round_().to(torch.uint8)
    return new_p, *codes, new_m_scale, new_r_scale


prepare = Eager(forward)
