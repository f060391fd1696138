"""RMSNorm in CuPy, forward: a ReductionKernel for rstd, then an ElementwiseKernel.

Two kernels are what CuPy's classes give, since a reduction returns nothing but its sums: x is read
twice.
"""

from __future__ import annotations

from ..backends.cupy import Elementwise, RowReduction, literal
from ..backends.cupy import prepare as prepare_kernels
from ..spec import Prepared, Spec
from .rms_norm import EPS


def refuses(direction: str, dtype: str) -> str | None:
    if direction == "backward":
        return "CuPy's kernel classes cannot write dx and sum dweight in one pass over the rows"
    return None


def prepare(direction: str, spec: Spec) -> Prepared:
    columns = int(spec.dims["columns"])
    last = f"rstd = rsqrtf(a / {literal(float(columns))} + {literal(EPS)})"
    squares = RowReduction("rms_rstd", "x", "rstd", "get(x) * get(x)", "a + b", last, "0.0f")
    scale = Elementwise(
        "rms_scale",
        ["x", "weight", "rstd"],
        ["y"],
        f"y = put(get(x) * rstd[i / {columns}] * get(weight[i % {columns}]))",
        raw=["weight", "rstd"],
    )
    return prepare_kernels(spec, [squares, scale])
