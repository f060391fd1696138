"""Compiles and launches a kernel per element type, in a process that may crash.

    python -P -m membound.bench.launch_probe < target.json

prints {dtype: what is wrong, or null} for the device of the target.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from ..kernels.backends.cuda import Geometry, Toolchain
from ..kernels.target import Target
from .device.probe import one_line

SOURCE = Path(__file__).with_name("launch_probe.cu")
CTYPES = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}
"""Element types that are probed, and how CUDA C++ spells them."""
THREADS = 64


def probed(probe: Callable[[str], None]) -> dict[str, str | None]:
    """Every element type with the reason why its probe raised, else None."""
    found: dict[str, str | None] = {}
    for dtype in CTYPES:
        try:
            probe(dtype)
            found[dtype] = None
        except Exception as error:
            found[dtype] = one_line(error)
    return found


def launch(toolchain: Toolchain, target: Target, device: str, dtype: str) -> None:
    """Build, launch once and check; raises what goes wrong, ValueError for a wrong result."""
    import torch

    y = torch.zeros(THREADS, dtype=getattr(torch, dtype), device=device)
    wait: Callable[[], object] = torch.cuda.synchronize if y.is_cuda else lambda: None
    stream = torch.cuda.Stream(y.device) if y.is_cuda else None  # type: ignore[no-untyped-call,unused-ignore]
    (kernel,) = toolchain.build(SOURCE, [f"count<{CTYPES[dtype]}>"], target)
    wait()
    kernel.bind(stream, Geometry(1, THREADS), [y])()
    wait()
    if y.cpu().tolist() != list(range(THREADS)):
        raise ValueError("the kernel ran and left wrong values")


def main() -> int:
    import torch

    from ..kernels.backends.cuda_nvrtc import NvrtcToolchain

    target = Target(**json.load(sys.stdin))
    device = f"cuda:{target.ordinal}"
    if torch.cuda.is_available():
        torch.cuda.set_device(device)
    print(json.dumps(probed(lambda dtype: launch(NvrtcToolchain(), target, device, dtype))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
