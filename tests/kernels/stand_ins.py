"""What stands in for the compilers that need a GPU, each a `Build`.

Triton's interpreter, Numba's simulator, and a C++ compiler for what CuPy's would compile.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from membound.kernels.operation import Tensor
from membound.kernels.target import Target


def interpret(kernel: Any, known: Mapping[str, Tensor], target: Target) -> Any:
    """Triton's interpreter in the place of its compiler: a `Build`."""
    _convert_as_gpus_do()
    _patch_once()

    def run(arguments: Any, stream: Any) -> Any:
        return lambda: kernel.function[kernel.grid](*arguments)

    return run


def _convert_as_gpus_do() -> None:
    """Triton's interpreter cuts float32 off, knows no NaN of 8 bits and does not saturate."""
    from triton import language as tl
    from triton.runtime import interpreter

    original = interpreter._convert_float
    if getattr(original, "converts", False):
        return
    narrow = {
        tl.bfloat16: torch.bfloat16,
        tl.float8e4nv: torch.float8_e4m3fn,
        tl.float8e5: torch.float8_e5m2,
    }

    def convert(value: Any, source: Any, target: Any, mode: Any) -> Any:
        given = torch.from_numpy(value.copy())
        if source == tl.float32 and target in narrow:
            stored = narrow[target]
            if stored.itemsize == 1:
                largest = torch.finfo(stored).max
                given = given.clamp(-largest, largest)
            codes = given.to(stored)
            return codes.view({1: torch.uint8, 2: torch.uint16}[stored.itemsize]).numpy()
        if source in narrow and target == tl.float32:
            return given.view(narrow[source]).float().numpy()
        return original(value, source, target, mode)

    convert.converts = True  # type: ignore[attr-defined]
    interpreter._convert_float = convert


def _patch_once() -> None:
    """A launch replaces what `tl` has; so does every call of a device function in it, which finds
    nothing left to replace and is most of the interpreter's time."""
    from triton import language as tl
    from triton.runtime import interpreter

    original = interpreter._patch_lang
    if getattr(original, "once", False):
        return

    def patch(function: Any) -> Any:
        seen = [own for own in function.__globals__.values() if own is tl or own is tl.core]
        waits = any(tl.core.is_builtin(language.load) for language in seen)
        return original(function) if waits else interpreter._LangPatchScope()

    patch.once = True  # type: ignore[attr-defined]
    interpreter._patch_lang = patch


def simulate(kernel: Any, known: Mapping[str, Tensor], target: Target) -> Any:
    """Numba's simulator in the place of its compiler: a `Build`."""
    from membound.tests.kernels import simulator
    from numba import cuda

    simulator.mend()
    compiled = cuda.jit(kernel.function)

    def run(arguments: Any, stream: Any) -> Any:
        return lambda: compiled[kernel.grid, kernel.block](*(a.numpy() for a in arguments))

    return run


HOST = """
#include <math.h>
#include <string.h>
#define __device__ static inline
#define __expf expf
#define __logf logf
static inline float __int_as_float(unsigned v) { float f; memcpy(&f, &v, 4); return f; }
static inline float __uint_as_float(unsigned v) { return __int_as_float(v); }
static inline unsigned __float_as_uint(float v) { unsigned u; memcpy(&u, &v, 4); return u; }
static inline float rsqrtf(float v) { return 1 / sqrtf(v); }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
typedef unsigned short uint16;
typedef unsigned char uint8;
typedef float float32;
typedef _Float16 float16;
"""


def host_text(kernel: Any, known: Mapping[str, Tensor], preamble: str) -> str:
    """The text CuPy is given, in a loop over plain arrays: C++ for a CPU."""
    from membound.kernels.backends.cupy import Elementwise, parameter

    if isinstance(kernel, Elementwise):
        names = [*kernel.reads, *kernel.writes]
        inner = [name for name in names if name not in kernel.raw]
        pointers = [f"{parameter(name, known)}{'_' * (name in inner)}" for name in names]
        loop = "".join(f"auto& {name} = {name}_[i];\n" for name in inner) + kernel.body + ";"
    else:
        names, inner = [*kernel.reads, kernel.write], []
        pointers = [f"{parameter(name, known)}_" for name in names]
        columns = next(known[n].shape[1] for n in kernel.reads if len(known[n].shape) == 2)
        places = {n: f"i * {columns} + j" if len(known[n].shape) == 2 else "i" for n in names}
        loads = "".join(f"auto& {name} = {name}_[{places[name]}];\n" for name in kernel.reads)
        loop = f"""double a = {kernel.identity};  // CuPy sums in a tree
        for (long j = 0; j < {columns}; ++j) {{
            {loads}float b = {kernel.each};
            a = {kernel.combine};
        }}
        auto& {kernel.write} = {kernel.write}_[i];
        {kernel.last};"""
    arguments = ", ".join(pointer.replace(" ", "* ") for pointer in pointers)
    return (
        f'{HOST}{preamble}extern "C" void run({arguments}, long n) {{\n'
        f"for (long i = 0; i < n; ++i) {{\n{loop}\n}}\n}}\n"
    )


def on_host(kernel: Any, known: Mapping[str, Tensor], preamble: str) -> Any:
    """A C++ compiler for the CPU in the place of CuPy: a `Build`."""
    from membound.kernels.backends.cupy import Elementwise

    function = _compiled_on_host(host_text(kernel, known, preamble))
    elementwise = isinstance(kernel, Elementwise)
    names = [*kernel.reads, *(kernel.writes if elementwise else [kernel.write])]

    def run(tensors: Mapping[str, torch.Tensor], stream: Any) -> Any:
        pointers = [ctypes.c_void_p(tensors[name].data_ptr()) for name in names]
        elements = ctypes.c_long(known[names[-1]].elements)
        return lambda: function(*pointers, elements)

    return run


@functools.cache
def _compiled_on_host(text: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "kernel.so")
        # <math.h> is C's own there: that of C++ takes longer than all the rest.
        command = ["g++", "-nostdinc++", "-O1", "-w", "-fPIC", "-shared", "-x", "c++", "-"]
        subprocess.run([*command, "-o", str(library)], input=text, text=True, check=True)
        return ctypes.CDLL(str(library)).run
