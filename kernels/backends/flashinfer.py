"""FlashInfer: kernels for inference, forward alone, compiled at their first call."""

from __future__ import annotations

from .peers import Library

ARCH = 75
"""The oldest that its documentation names."""

LIBRARY = Library("flashinfer", "flashinfer-python", (0, 7, 4))

unavailable = LIBRARY.unavailable


def refuses(direction: str, dtype: str) -> str | None:
    if direction == "backward":
        return "flashinfer is for inference: it has no backward"
    if dtype == "float32":
        return "flashinfer takes float16 and bfloat16"
    return None
