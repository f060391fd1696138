"""Kernels on the host, written with Numba: compiled serially, run by one thread per core.

A kernel is a function of (arguments, thread): `arguments` are 64-bit integers (addresses, extents,
last the number of threads). It is compiled to a plain C function, which is quick and goes to a disk
cache; the only parallel function is the loop below that calls it once per thread, so a thread
always works on the same part.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from ..spec import Launch, Tensors

Function = Callable[..., Any]

_KERNELS = Path(__file__).resolve().parent.parent


def unavailable() -> str | None:
    """Why nothing of this backend can run here, or None."""
    missing = [name for name in ("numba", "torch") if importlib.util.find_spec(name) is None]
    return f"needs {' and '.join(missing)} (pip install 'membound[cpu]')" if missing else None


@cache
def refuses(direction: str, dtype: str) -> str | None:
    """Why this processor cannot run a dtype, or None: float16 needs conversion instructions."""
    binding: Any = importlib.import_module("llvmlite.binding")
    if dtype == "float16" and platform.machine() in {"x86_64", "AMD64"}:
        features = binding.get_host_cpu_features()
        if not features.get("f16c"):
            return "float16: this processor has no conversion to and from it (F16C)"
    return None


def _numba() -> Any:
    """Imported late, so that listing operations does not wait for it; its types are partial."""
    return importlib.import_module("numba")


def inlined(function: Function) -> Function:
    """A Numba function that disappears into its callers: Python cannot call it."""
    numba = _numba()
    made: Function = numba.njit(
        forceinline=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    return made


def compiled(kernel: Function) -> Any:
    """`kernel` as machine code, from the disk cache where its sources have not changed."""
    numba = _numba()
    signature = "void(CPointer(int64), int64)"
    with _disk_cache(Path(kernel.__code__.co_filename).parent):
        return numba.cfunc(signature, nopython=True, cache=True, error_model="numpy")(kernel)


def launcher(kernel: Any, arguments: Sequence[int], threads: int, keep: Tensors) -> Launch:
    """A launch of a `compiled` kernel on `threads` threads; `keep` stays alive with it."""
    import numpy as np

    values = np.array([*arguments, threads], dtype=np.int64)
    held = (kernel, values, keep)
    if threads == 1:  # without meeting other threads, which on a busy machine takes milliseconds
        launch = partial(kernel.ctypes, values.ctypes.data_as(kernel.ctypes.argtypes[0]), 0)
    else:
        from .cpu_parallel import run

        numba = _numba()
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        launch = partial(run, kernel.address, values.ctypes.data, threads)
    return _holding(launch, held)


def _holding(launch: Callable[[], None], held: tuple[Any, ...]) -> Launch:
    """`launch`, with what it works on kept alive as long as itself."""

    def run() -> None:
        assert held
        launch()

    return run


@contextmanager
def _disk_cache(folder: Path) -> Iterator[None]:
    """Numba's cache in a folder of its own per state of the sources.

    Numba forgets a cached function when the file it is written in changes, but not when a function
    it calls does; ours are spread over several files.
    """
    numba = _numba()
    before = numba.config.CACHE_DIR
    root = Path(before) if before else _KERNELS / "__pycache__"
    numba.config.CACHE_DIR = str(root / f"cpu-{_digest(folder)}")
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


@cache
def _digest(folder: Path) -> str:
    """12 hex digits over every file that a kernel written in `folder` may take something from."""
    ours = _KERNELS.rglob("*_cpu.py")
    files = {*ours, *(_KERNELS / "backends").glob("cpu*.py"), *folder.glob("*_cpu.py")}
    stated = {file.with_name(file.name.replace("_cpu.py", ".py")) for file in files}
    digest = hashlib.sha256()
    for file in sorted(files | stated):
        if file.exists():
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
