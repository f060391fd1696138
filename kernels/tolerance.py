"""How far an output may be from the float64 reference, and whether it is.

The error of an element is |out - exact| / (|exact| + rms(exact)): relative where the element is
large, and measured against the size of the whole output where it is small, since a sum that
cancels keeps the rounding of its terms. It may be `tolerance(tensor)`: two roundings to the dtype,
and the random walk of float32 roundings over the terms that one element sums.

Codes of at most 8 bits are too coarse for that. One is right if it is what the exact value, or one
within `Tensor.slack` of it, is rounded to: where what was encoded is itself rounded, only values at
a tie between two codes leave a choice. With no slack the code is that of the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, sqrt

import torch

from .dtypes import float32
from .operation import Tensor

_CHUNK = 1 << 22


@dataclass(frozen=True)
class Comparison:
    """max_error is inf where NaN or infinity stand in different places."""

    name: str
    max_error: float
    tolerance: float
    worst_index: int  # flat

    @property
    def ok(self) -> bool:
        return self.max_error <= self.tolerance

    def __str__(self) -> str:
        return (
            f"{self.name}: error {self.max_error:.3g} at element {self.worst_index}, "
            f"tolerance {self.tolerance:.3g}"
        )


def tolerance(tensor: Tensor) -> float:
    """Largest error that rounding explains; 0 for integers, and for codes beyond their slack."""
    if not tensor.dtype.epsilon or tensor.dtype.largest:
        return 0.0
    return 2 * tensor.dtype.epsilon + 8 * float32.epsilon * sqrt(max(tensor.reduces, 1))


def compare_outputs(
    tensors: Iterable[Tensor], values: Mapping[str, torch.Tensor], exact: Mapping[str, torch.Tensor]
) -> list[Comparison]:
    """`compare` of every tensor, with the values that scale it where it has such."""
    return [
        compare(t, values[t.name], exact[t.name], values[t.scaled_by] if t.scaled_by else None)
        for t in tensors
    ]


def compare(
    tensor: Tensor,
    value: torch.Tensor,
    exact: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> Comparison:
    """Hold `value` to the reference `exact`, element by element, in chunks.

    scales: the output that `tensor.scaled_by` names. Raises ValueError where the shape or dtype of
    `value` is not that of `tensor`, or scales are missing.
    """
    if tuple(value.shape) != tuple(tensor.shape) or value.dtype != tensor.dtype.torch_dtype:
        raise ValueError(
            f"{tensor.name} is {tuple(value.shape)} {value.dtype}; "
            f"expected {tuple(tensor.shape)} {tensor.dtype.torch_dtype}"
        )
    if tensor.scaled_by is not None and scales is None:
        raise ValueError(f"{tensor.name} is compared with the {tensor.scaled_by} that scale it")
    flat, flat_exact, numbers = value.reshape(-1), exact.reshape(-1), tensor.dtype.numbers
    scale = _rms(flat_exact) if tensor.dtype.epsilon else 1.0
    worst, worst_index = 0.0, 0
    for start in range(0, flat_exact.numel(), _CHUNK):
        stored = flat[start // numbers : (start + _CHUNK) // numbers]
        exact_part = flat_exact[start : start + _CHUNK]
        if tensor.dtype.largest or tensor.slack:
            units = _units(scales, flat_exact.numel(), start, exact_part.numel())
            error = _code_errors(tensor, stored, exact_part, units)
        else:
            error = _errors(stored, exact_part, scale)
        largest, index = error.max(0)
        if largest > worst:
            worst, worst_index = float(largest), start + int(index)
    return Comparison(tensor.name, worst, tolerance(tensor), worst_index)


def _errors(value: torch.Tensor, exact: torch.Tensor, scale: float) -> torch.Tensor:
    value, exact = value.double(), exact.double()
    difference = (value - exact).abs_()
    error = difference / exact.abs().add_(scale)
    # The same infinity or NaN in both is exact; anything else that is not finite never passes.
    if not bool(torch.isfinite(error).all()):
        same = (value == exact) | (value.isnan() & exact.isnan())
        error = torch.where(same, 0.0, torch.where(error.isfinite(), error, inf))
    return error


def _code_errors(
    tensor: Tensor, stored: torch.Tensor, exact: torch.Tensor, units: torch.Tensor | None
) -> torch.Tensor:
    """How far beyond the codes of every value within the slack; 0 inside, inf where NaN differ."""
    dtype = tensor.dtype
    if units is not None:
        exact = torch.where(units == 0, units, exact / units)
    if dtype.largest:
        exact = exact.clamp(-2 * dtype.largest, 2 * dtype.largest)
    slack = exact.abs() * tensor.slack
    rounded = dtype.rounded if dtype.epsilon else torch.round
    low, high = rounded(exact - slack), rounded(exact + slack)
    value = dtype.decoded(stored)
    outside = torch.maximum(low - value, value - high).clamp_min(0)
    error = outside / (value.abs() + dtype.epsilon)
    agree = value.isnan() == low.isnan()
    return torch.where(agree, error.nan_to_num(0.0), inf)


def _units(
    scales: torch.Tensor | None, numbers: int, start: int, length: int
) -> torch.Tensor | None:
    """Of every one of `length` numbers from `start` on, of `numbers`, the scale it has."""
    if scales is None:
        return None
    at = torch.arange(start, start + length, device=scales.device) // (numbers // scales.numel())
    return scales.reshape(-1)[at].double()


def _rms(exact: torch.Tensor) -> float:
    """Root mean square of the finite elements; 1 where there is none or all are zero."""
    total, count = 0.0, 0
    for start in range(0, exact.numel(), _CHUNK):
        part = exact[start : start + _CHUNK].double()
        finite = part if bool(torch.isfinite(part).all()) else part[part.isfinite()]
        total += float((finite * finite).sum())
        count += finite.numel()
    return sqrt(total / count) if total > 0 else 1.0
