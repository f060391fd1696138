"""AdamW with moments of 8 bits in PyTorch: decoded, stepped as in adamw_torch.py, encoded."""

from __future__ import annotations

import torch

from ..backends.torch import Eager, PerOperation
from .adamw_8bit import LARGEST, LARGEST_ROOT, decoded, encoded
from .adamw_torch import whole

Real = torch.Tensor


def decode_m(q: Real, scale: Real) -> Real:
    return decoded(q, scale, scale.dtype)


def decode_v(q: Real, scale: Real) -> Real:
    return decoded(q, scale, scale.dtype).square_()


def encode_m(x: Real) -> tuple[Real, Real]:
    codes, scale = encoded(x, LARGEST)
    return codes.round_().to(torch.int8), scale


def encode_v(x: Real) -> tuple[Real, Real]:
    codes, scale = encoded(x.sqrt(), LARGEST_ROOT)
    return codes.round_().to(torch.uint8), scale


def forward(p: Real, g: Real, m: Real, r: Real, m_scale: Real, r_scale: Real) -> tuple[Real, ...]:
    new_p, new_m, new_v = whole(p, g, decode_m(m, m_scale), decode_v(r, r_scale))
    m_codes, new_m_scale = encode_m(new_m)
    r_codes, new_r_scale = encode_v(new_v)
    return new_p, m_codes, r_codes, new_m_scale, new_r_scale


prepare = PerOperation(
    {
        "adamw_8bit": Eager(forward),
        "adamw_8bit_decode_m": Eager(decode_m),
        "adamw_8bit_decode_v": Eager(decode_v),
        "adamw_8bit_encode_m": Eager(encode_m),
        "adamw_8bit_encode_v": Eager(encode_v),
    }
)
