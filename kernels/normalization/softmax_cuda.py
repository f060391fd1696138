"""Softmax, its logarithm, masked and causal softmax in CUDA C++."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy
import torch

from ..backends.cuda_ladder import FORWARD_OF_ROWS, prepare_row_step
from ..backends.cuda_row_map import prepare_map
from ..spec import Prepared, Spec
from .softmax import SCALE

LADDERS = {"softmax": FORWARD_OF_ROWS}

_SOURCE = Path(__file__).with_name("softmax.cu")
_LADDER = Path(__file__).with_name("softmax_ladder.cu")
_FORMS = {
    "softmax": "Form::kPlain",
    "log_softmax": "Form::kLog",
    "scaled_masked_softmax": "Form::kMasked",
    "causal_softmax": "Form::kCausal",
}


def prepare(direction: str, spec: Spec) -> Prepared:
    if spec.variant:
        return prepare_row_step(spec, _LADDER, 2 * spec.io.operands["x"].traffic)
    form = _FORMS[spec.operation.name]
    masked = form == "Form::kMasked"
    scale = numpy.float32(SCALE if masked else 1)

    def arguments(
        data: Sequence[torch.Tensor], extents: Sequence[numpy.generic]
    ) -> Sequence[torch.Tensor | numpy.generic]:
        rows, columns, shift, _ = extents
        reciprocal = numpy.uint64(-(-(2**64) // int(columns)) % 2**64)
        absent = () if masked or direction == "backward" else (numpy.uint64(0),)
        *reads, output = data
        return [*reads, *absent, output, rows, columns, shift, reciprocal, scale]

    partial = form == "Form::kCausal"
    if direction == "forward":
        return prepare_map(
            *(spec, _SOURCE, "softmax_forward", arguments, form),
            streams=1,
            unpacked=True,
            partial=partial,
        )
    if masked:  # the mask is in y
        form = _FORMS["softmax"]
    return prepare_map(
        spec, _SOURCE, "softmax_backward", arguments, form, streams=2, partial=partial
    )
