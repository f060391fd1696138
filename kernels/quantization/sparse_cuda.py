"""2:4 sparsity in CUDA C++."""

from __future__ import annotations

from pathlib import Path

from ..backends.cuda_quantize import prepare_run
from ..spec import Prepared, Spec

_SOURCE = Path(__file__).with_name("sparse.cu")


def prepare(direction: str, spec: Spec) -> Prepared:
    kernel = "prune" if spec.operation.name == "prune_2_4" else "compress"
    writes = [tensor.name for tensor in spec.io.writes]
    return prepare_run(spec, _SOURCE, kernel, [], writes, ["x"])
