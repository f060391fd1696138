"""Liger-Kernel: Triton kernels for training (`liger_kernel.transformers.functional`).

By default the backward of its RMSNorm writes dx over dy, that of its gated activations both
gradients over their inputs, its rotary embedding turns its inputs, and its cross-entropy writes the
gradient over the logits.
"""

from __future__ import annotations

from .peers import Library

LONGEST = 65536
"""Columns of the longest row that one of its blocks takes (`calculate_settings`)."""

LIBRARY = Library("liger_kernel", "liger-kernel", (0, 8, 5))

unavailable = LIBRARY.unavailable
