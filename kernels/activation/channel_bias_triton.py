"""A bias per channel of NCHW images in Triton: a flat run; dbias by planes, then by images."""

from __future__ import annotations

from ..backends.triton import Plan, choose
from ..backends.triton_elementwise import add_channels, flat
from ..backends.triton_rows import CONFIGURATIONS, sum_kernel, sum_of_partials
from ..dtypes import float32
from ..operation import Tensor
from ..spec import Choice, Prepared, Spec


def prepare(direction: str, spec: Spec) -> Prepared:
    images, channels, height, width = (int(spec.dims[name]) for name in spec.operation.dims)
    pixels = height * width
    if direction == "forward":
        constants = {"CHANNELS": channels, "PIXELS": pixels}
        return flat(spec, add_channels, {name: name for name in ("x", "bias", "y")}, constants)

    def plan(choice: Choice) -> Plan:
        sums = sum_kernel({"x": "dy", "sums": "sums"}, images * channels, pixels, choice)
        total = sum_of_partials(spec, {"sums": "dbias"}, images, channels)
        return Plan([sums, total], [Tensor("sums", (images, channels), float32)])

    return choose(spec, plan, CONFIGURATIONS)
