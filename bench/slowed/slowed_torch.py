"""The streams in PyTorch, plain and with buffers of their own that are moved beside the stated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from membound.kernels.spec import Launch, Prepared, Spec

MORE = {"": 0.0, "more5": 0.05, "more10": 0.10}
"""Additional share of the stated traffic, by variant."""
VARIANTS = tuple(variant for variant in MORE if variant)

Stream = Callable[..., object]
_STREAMS: Mapping[str, Stream] = {
    "slowed_copy": lambda y, x: y.copy_(x),
    "slowed_read": lambda sums, x: torch.sum(x, 1, dtype=torch.float32, out=sums),
    "slowed_add": lambda y, a, b: torch.add(a, b, out=y),
}


def prepare(direction: str, spec: Spec) -> Prepared:
    stream = _STREAMS[spec.operation.name]
    rows = round(MORE[spec.variant] * int(spec.dims["rows"]))
    stated = [*spec.io.writes, *spec.io.reads]
    more = [replace(t, name=f"more_{t.name}", shape=(rows, *t.shape[1:])) for t in stated]

    def bind(tensors: Mapping[str, torch.Tensor], _: Any) -> Launch:
        own = [tensors[tensor.name] for tensor in stated]
        beside = [tensors[tensor.name].fill_(1) for tensor in more] if rows else []

        def launch() -> None:
            stream(*own)
            if beside:
                stream(*beside)

        return launch

    return Prepared(bind, scratch=more if rows else ())
