"""Normalization of rows in CuPy, forward: reductions for the statistics, then one map.

A reduction returns nothing but its result, so x is read once for each statistic and once to be
scaled.
"""

from __future__ import annotations

from ..spec import Prepared, Spec
from .cupy import Elementwise, Kernel, RowReduction, literal, prepare


def refuses_backward(direction: str, dtype: str) -> str | None:
    if direction == "backward":
        return "CuPy's kernel classes cannot write dx and sum by column in one pass over the rows"
    return None


def prepare_norm(spec: Spec, eps: float) -> Prepared:
    """Operands x, weight, y, rstd; with a mean it and bias, with a residual it and h."""
    known, columns = spec.io.operands, spec.dims["columns"]
    centred, fused = "mean" in known, "residual" in known
    x = "h" if fused else "x"
    count = literal(float(columns))
    kernels: list[Kernel] = []
    if fused:
        body = "h = put(get(x) + get(residual))"
        kernels.append(Elementwise("add_residual", ["x", "residual"], ["h"], body))
    if centred:
        last = f"mean = a / {count}"
        kernels.append(RowReduction("row_mean", [x], "mean", f"get({x})", "a + b", last, "0.0f"))
    apart = f"(get({x}) - mean)" if centred else f"get({x})"
    last = f"rstd = rsqrtf(a / {count} + {literal(eps)})"
    reads = [x, "mean"] if centred else [x]
    square = f"{apart} * {apart}"
    kernels.append(RowReduction("row_rstd", reads, "rstd", square, "a + b", last, "0.0f"))
    rows, by_column = ["rstd"], ["weight"]
    value = f"get({x}) * rstd[i / {columns}] * get(weight[i % {columns}])"
    if centred:
        rows, by_column = ["mean", "rstd"], ["weight", "bias"]
        value = f"(get({x}) - mean[i / {columns}]) * rstd[i / {columns}]"
        value += f" * get(weight[i % {columns}]) + get(bias[i % {columns}])"
    reads, raw = [x, *by_column, *rows], [*by_column, *rows]
    kernels.append(Elementwise("row_scale", reads, ["y"], f"y = put({value})", raw=raw))
    return prepare(spec, kernels)
