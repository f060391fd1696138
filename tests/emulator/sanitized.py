"""One launch under the sanitizers, in a child process that may die of it.

The child holds every tensor in an allocation of exactly its size, so the first byte beyond it is
a red zone. It imports neither torch nor numpy.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .build_tools import runtime_of_sanitizer
from .layout import Launch

_PAGE = 256
"""Tensors keep their address modulo this: what torch aligns its own allocations to on a GPU."""

_VERDICT = re.compile(r"AddressSanitizer: (.*)|runtime error: (.*)")


@dataclass(frozen=True)
class _Job:
    binary: str
    kernel: int
    geometry: Any
    seed: int
    buffers: Sequence[tuple[int, bytes]]  # (address modulo _PAGE, content)
    arguments: Sequence[int | bytes]  # an index into buffers, or the bytes of a scalar


def run(
    binary: Path, kernel: int, geometry: Any, arguments: Sequence[Any], *, seed: int
) -> str | None:
    """Run a kernel on copies of the tensors and copy back. What a sanitizer said, or None."""
    import torch

    unique = {t.data_ptr(): t for t in arguments if isinstance(t, torch.Tensor)}
    places = {address: i for i, address in enumerate(unique)}
    job = _Job(
        binary=str(binary),
        kernel=kernel,
        geometry=replace(geometry, blocks=int(geometry.blocks)),  # an extent has a name
        seed=seed,
        buffers=[(address % _PAGE, _content(tensor)) for address, tensor in unique.items()],
        arguments=[
            places[a.data_ptr()] if isinstance(a, torch.Tensor) else a.tobytes() for a in arguments
        ],
    )
    options = "detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=0:exitcode=99"
    done = subprocess.run(
        [sys.executable, "-P", "-m", __spec__.name],
        input=pickle.dumps(job),
        capture_output=True,
        env=os.environ | {"LD_PRELOAD": runtime_of_sanitizer(), "ASAN_OPTIONS": options},
        check=False,
    )
    if done.returncode:
        return _verdict(done.stderr.decode(errors="replace"))
    answer = pickle.loads(done.stdout)
    if isinstance(answer, str):
        return answer
    for tensor, content in zip(unique.values(), answer, strict=True):
        if tensor.numel():
            tensor.view(torch.uint8).flatten().copy_(
                torch.frombuffer(bytearray(content), dtype=torch.uint8)
            )
    return None


def _content(tensor: Any) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def _verdict(log: str) -> str:
    found = _VERDICT.search(log)
    return next(filter(None, found.groups()), "?") if found else f"the child died: {log[-300:]}"


def _child() -> None:
    job: _Job = pickle.load(sys.stdin.buffer)
    libc = ctypes.CDLL(None)
    places: list[int] = []
    for offset, content in job.buffers:
        base = ctypes.c_void_p()
        size = ctypes.c_size_t(offset + len(content))
        libc.posix_memalign(ctypes.byref(base), ctypes.c_size_t(_PAGE), size)
        places.append((base.value or 0) + offset)
        ctypes.memmove(places[-1], content, len(content))
        libc.__asan_poison_memory_region(base, ctypes.c_size_t(offset))
    error = ctypes.create_string_buffer(512)
    launch, kept = Launch.of(job.geometry, [], seed=job.seed)
    launch.error = ctypes.cast(error, ctypes.c_void_p)
    raw = [a if isinstance(a, bytes) else places[a].to_bytes(8, "little") for a in job.arguments]
    boxes = [ctypes.create_string_buffer(value, len(value)) for value in raw]
    arguments = (ctypes.c_void_p * max(len(boxes), 1))(*map(ctypes.addressof, boxes))
    failed = ctypes.CDLL(job.binary).run_kernel(job.kernel, ctypes.byref(launch), arguments)
    del kept
    answer: str | list[bytes] = [
        ctypes.string_at(place, len(content))
        for place, (_, content) in zip(places, job.buffers, strict=True)
    ]
    pickle.dump(error.value.decode() if failed else answer, sys.stdout.buffer)


if __name__ == "__main__":
    _child()
