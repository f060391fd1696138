"""The gated residual in CUDA C++: loads, stores and tails are `elementwise.cuh`'s."""

from pathlib import Path

from membound.kernels.backends.cuda_elementwise import prepare_elementwise
from membound.kernels.spec import Prepared, Spec


def prepare(direction: str, spec: Spec) -> Prepared:
    return prepare_elementwise(spec, Path(__file__).with_name("gated_residual.cu"), "GatedResidual")
