"""Max-pooling of NCHW images in CuPy: an ElementwiseKernel over outputs, both ways as a gather.

Forward runs over y and its offsets and reads the windows of x, backward over dx and asks the
windows that contain an element. Extents are constants of the text.
"""

from __future__ import annotations

from ..backends.cupy import Elementwise
from ..backends.cupy import prepare as prepare_kernels
from ..spec import Prepared, Spec

_FORWARD = """
long long plane = i / (OUT_H * OUT_W);
int place = i % (OUT_H * OUT_W);
int top = place / OUT_W * STRIDE - PADDING, left = place % OUT_W * STRIDE - PADDING;
float best = LOWEST;
int where = max(-top, 0) * KERNEL + max(-left, 0);  // the first inside, where all are -inf
for (int r = max(-top, 0); r < min(KERNEL, HEIGHT - top); ++r)
    for (int c = max(-left, 0); c < min(KERNEL, WIDTH - left); ++c) {
        float v = get(x[plane * (HEIGHT * WIDTH) + (top + r) * WIDTH + left + c]);
        if (v > best || v != v) { best = v; where = r * KERNEL + c; }
    }
y = put(best);
offset = where;
"""
_BACKWARD = """
long long plane = i / (HEIGHT * WIDTH);
int place = i % (HEIGHT * WIDTH);
int row = place / WIDTH + PADDING, column = place % WIDTH + PADDING;
float total = 0.0f;
for (int r = max(0, (row - KERNEL + STRIDE) / STRIDE); r <= min(OUT_H - 1, row / STRIDE); ++r)
    for (int c = max(0, (column - KERNEL + STRIDE) / STRIDE);
         c <= min(OUT_W - 1, column / STRIDE); ++c) {
        long long window = plane * (OUT_H * OUT_W) + r * OUT_W + c;
        int inside = (row - r * STRIDE) * KERNEL + column - c * STRIDE;
        if (row - r * STRIDE < KERNEL && column - c * STRIDE < KERNEL && offset[window] == inside)
            total += get(dy[window]);
    }
dx = put(total);
"""


def prepare(direction: str, spec: Spec) -> Prepared:
    pooled = spec.io.operands["offset"].shape
    extents = {"OUT_H": pooled[2], "OUT_W": pooled[3]} | {
        name.upper(): spec.dims[name] for name in ("height", "width", "kernel", "stride", "padding")
    }
    constants = "".join(f"const int {name} = {int(value)};\n" for name, value in extents.items())
    if direction == "forward":
        kernel = Elementwise(
            "max_pool_forward", ["x"], ["y", "offset"], constants + _FORWARD, raw=["x"]
        )
    else:
        reads = ["dy", "offset"]
        kernel = Elementwise("max_pool_backward", reads, ["dx"], constants + _BACKWARD, raw=reads)
    return prepare_kernels(spec, [kernel])
