"""The mean of every plane in Triton: sums over rows; in backward a flat run of outputs."""

from __future__ import annotations

from ..backends.triton_elementwise import flat, spread_planes
from ..backends.triton_rows import row_sums
from ..spec import Prepared, Spec


def prepare(direction: str, spec: Spec) -> Prepared:
    pixels = int(spec.dims["height"]) * int(spec.dims["width"])
    if direction == "forward":
        return row_sums(spec, 1 / pixels)
    constants = {"PIXELS": pixels, "SCALE": 1 / pixels}
    return flat(spec, spread_planes, {"dy": "dy", "dx": "dx"}, constants)
