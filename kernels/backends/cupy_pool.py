"""Pooling in CuPy: an ElementwiseKernel over outputs, both ways as a gather, NCHW and NHWC.

Forward runs over y and reads the windows of x, backward over dx and asks the windows that contain
an element. Extents are constants of the text; the layout is what IN and OUT make of a pixel.
"""

from __future__ import annotations

from ..spec import Prepared, Spec
from .cupy import Elementwise, prepare

_PLANES = """
long long plane = i / ({h} * {w});
int place = i % ({h} * {w});
#define IN(r, c) (plane * (HEIGHT * WIDTH) + (r) * WIDTH + (c))
#define OUT(r, c) (plane * (OUT_H * OUT_W) + (r) * OUT_W + (c))
"""
_CHANNELS_LAST = """
long long pixel = i / CHANNELS, image = pixel / ({h} * {w});
int place = pixel % ({h} * {w}), channel = i % CHANNELS;
#define IN(r, c) ((image * (HEIGHT * WIDTH) + (r) * WIDTH + (c)) * CHANNELS + channel)
#define OUT(r, c) ((image * (OUT_H * OUT_W) + (r) * OUT_W + (c)) * CHANNELS + channel)
"""
_WINDOW = """
int top = place / OUT_W * STRIDE - PADDING, left = place % OUT_W * STRIDE - PADDING;
int above = max(-top, 0), beside = max(-left, 0);
int below = min(KERNEL, HEIGHT - top), beyond = min(KERNEL, WIDTH - left);
"""
_WINDOWS = """
int row = place / WIDTH + PADDING, column = place % WIDTH + PADDING;
int above = max(0, (row - KERNEL + STRIDE) / STRIDE), below = min(OUT_H - 1, row / STRIDE);
int beside = max(0, (column - KERNEL + STRIDE) / STRIDE), beyond = min(OUT_W - 1, column / STRIDE);
float total = 0.0f;
"""
_MAXIMUM = """
float best = LOWEST;
int where = above * KERNEL + beside;  // the first inside, where all are -inf
for (int r = above; r < below; ++r)
    for (int c = beside; c < beyond; ++c) {
        float v = get(x[IN(top + r, left + c)]);
        if (v > best || v != v) { best = v; where = r * KERNEL + c; }
    }
y = put(best);
offset = where;
"""
_MAXIMUM_BACKWARD = """
for (int r = above; r <= below; ++r)
    for (int c = beside; c <= beyond; ++c) {
        int inside = (row - r * STRIDE) * KERNEL + column - c * STRIDE;
        bool held = row - r * STRIDE < KERNEL && column - c * STRIDE < KERNEL;
        if (held && offset[OUT(r, c)] == inside) total += get(dy[OUT(r, c)]);
    }
dx = put(total);
"""
_MEAN = """
float total = 0.0f;
for (int r = above; r < below; ++r)
    for (int c = beside; c < beyond; ++c) total += get(x[IN(top + r, left + c)]);
y = put(total * (1.0f / (KERNEL * KERNEL)));
"""
_MEAN_BACKWARD = """
for (int r = above; r <= below; ++r)
    for (int c = beside; c <= beyond; ++c)
        if (row - r * STRIDE < KERNEL && column - c * STRIDE < KERNEL) total += get(dy[OUT(r, c)]);
dx = put(total * (1.0f / (KERNEL * KERNEL)));
"""


def prepare_pool(spec: Spec, *, maximum: bool, channels_last: bool) -> Prepared:
    """Operands x, y and, of a maximum, offset; dy, dx."""
    forward = spec.direction == "forward"
    pooled = spec.io.operands["y" if forward else "dy"].shape
    out_h, out_w = pooled[1:3] if channels_last else pooled[2:]
    names = ("channels", "height", "width", "kernel", "stride", "padding")
    extents = {"OUT_H": out_h, "OUT_W": out_w} | {n.upper(): spec.dims[n] for n in names}
    body = "".join(f"const int {name} = {int(value)};\n" for name, value in extents.items())
    layout = _CHANNELS_LAST if channels_last else _PLANES
    if forward:
        body += layout.format(h="OUT_H", w="OUT_W") + _WINDOW + (_MAXIMUM if maximum else _MEAN)
    else:
        body += layout.format(h="HEIGHT", w="WIDTH") + _WINDOWS
        body += _MAXIMUM_BACKWARD if maximum else _MEAN_BACKWARD
    reads, writes = ([t.name for t in some] for some in (spec.io.reads, spec.io.outputs))
    name = f"{'max' if maximum else 'mean'}_pool_{spec.direction}"
    return prepare(spec, [Elementwise(name, reads, writes, body, raw=reads)])
