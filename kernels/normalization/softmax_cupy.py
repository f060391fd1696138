"""Softmax of rows in CuPy, and its logarithm: reductions, then one map over the elements."""

from __future__ import annotations

from ..backends.cupy import Elementwise, Kernel, RowReduction
from ..backends.cupy import prepare as prepare_kernels
from ..dtypes import float32
from ..operation import Tensor
from ..spec import Prepared, Spec

LACKS = {
    name: f"{name} is of tier 2: in CUDA C++, Triton and torch"
    for name in ("scaled_masked_softmax", "causal_softmax")
}


def prepare(direction: str, spec: Spec) -> Prepared:
    rows, columns = spec.io.reads[0].shape
    logarithm = spec.operation.name == "log_softmax"
    row = f"[i / {columns}]"
    kernels: list[Kernel]
    if direction == "forward":
        scratch = ["most", "total"]
        leave = f"get(x) - most{row} - __logf(total{row})"
        if not logarithm:
            leave = f"__expf(get(x) - most{row}) / total{row}"
        kernels = [
            # A NaN passes by the maximum, but not by the sum.
            RowReduction(
                "row_max", ["x"], "most", "get(x)", "a < b ? b : a", "most = a", "LOWEST"
            ),
            RowReduction(
                "row_exp", ["x", "most"], "total", "__expf(get(x) - most)", "a + b", "total = a",
                "0.0f",
            ),
            Elementwise("row_leave", ["x", *scratch], ["y"], f"y = put({leave})", raw=scratch),
        ]  # fmt: skip
    else:
        scratch = ["along"]
        each = "get(dy)" if logarithm else "get(dy) * get(y)"
        leave = f"(get(dy) - along{row}) * get(y)"
        if logarithm:
            leave = f"get(dy) - __expf(get(y)) * along{row}"
        reads = ["dy"] if logarithm else ["dy", "y"]
        kernels = [
            RowReduction("row_along", reads, "along", each, "a + b", "along = a", "0.0f"),
            Elementwise(
                "row_leave", ["dy", "y", *scratch], ["dx"], f"dx = put({leave})", raw=scratch
            ),
        ]
    return prepare_kernels(spec, kernels, [Tensor(name, (rows,), float32) for name in scratch])
