"""QuACK: kernels in CuTe-DSL (`quack`), compiled at their first call."""

from __future__ import annotations

from .peers import Library

ARCH = 90
"""Its documentation asks for Hopper or Blackwell."""

LIBRARY = Library("quack", "quack-kernels", (0, 6, 5))

unavailable = LIBRARY.unavailable
