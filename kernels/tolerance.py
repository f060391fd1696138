"""How far an output may be from the float64 reference, and whether it is.

The error of an element is |out - exact| / (|exact| + rms(exact)): relative where the element is
large, and measured against the size of the whole output where it is small, since a sum that
cancels keeps the rounding of its terms. It may be `tolerance(tensor)`: two roundings to the dtype,
and the random walk of float32 roundings over the terms that one element sums.
"""

from __future__ import annotations

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
    """Largest error that rounding explains; 0 for integers."""
    if not tensor.dtype.epsilon:
        return 0.0
    return 2 * tensor.dtype.epsilon + 8 * float32.epsilon * sqrt(max(tensor.reduces, 1))


def compare(tensor: Tensor, value: torch.Tensor, exact: torch.Tensor) -> Comparison:
    """Hold `value` to the reference `exact`, element by element, in chunks.

    Raises ValueError where the shape or dtype of `value` is not that of `tensor`.
    """
    if tuple(value.shape) != tuple(tensor.shape) or value.dtype != tensor.dtype.torch_dtype:
        raise ValueError(
            f"{tensor.name} is {tuple(value.shape)} {value.dtype}; "
            f"expected {tuple(tensor.shape)} {tensor.dtype.torch_dtype}"
        )
    flat, flat_exact = value.reshape(-1), exact.reshape(-1)
    scale = _rms(flat_exact) if tensor.dtype.epsilon else 1.0
    worst, worst_index = 0.0, 0
    for start in range(0, flat.numel(), _CHUNK):
        error = _errors(flat[start : start + _CHUNK], flat_exact[start : start + _CHUNK], scale)
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


def _rms(exact: torch.Tensor) -> float:
    """Root mean square of the finite elements; 1 where there is none or all are zero."""
    total, count = 0.0, 0
    for start in range(0, exact.numel(), _CHUNK):
        part = exact[start : start + _CHUNK].double()
        finite = part if bool(torch.isfinite(part).all()) else part[part.isfinite()]
        total += float((finite * finite).sum())
        count += finite.numel()
    return sqrt(total / count) if total > 0 else 1.0
