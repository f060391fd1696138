"""The gated residual in Triton: one block of float32 at a time."""

import triton
import triton.language as tl
from membound.kernels.backends.triton_elementwise import stream
from membound.kernels.spec import Prepared, Spec


@triton.jit
def _apply(residual, x, gate):  # type: ignore[no-untyped-def]
    return residual + x / (1.0 + tl.exp(-gate))


def prepare(direction: str, spec: Spec) -> Prepared:
    return stream(spec, _apply)
