"""CuPy's kernel classes: a launch described once as text, then compiled by CuPy at its first use.

Constants are written into the text, so that a launch passes nothing but arrays: a Python float
would reach a float parameter as a double. CuPy has no bfloat16; such arrays are uint16 to it, and
`get` and `put` convert in the kernel.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..dtypes import DType
from ..operation import Tensor
from ..spec import Launch, Prepared, Spec, Tensors

OLDEST = (13, 6)
_TYPES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "uint16",
    "uint8": "uint8",
}
_PREAMBLE = """
#define LOWEST __int_as_float(0xff800000)  // -inf
"""
_CONVERSIONS = {
    "float32": """
__device__ float get(float v) { return v; }
__device__ float put(float v) { return v; }
""",
    "float16": """
__device__ float get(float16 v) { return (float)v; }
__device__ float16 put(float v) { return (float16)v; }
""",
    "bfloat16": """
__device__ float get(unsigned short v) { return __uint_as_float((unsigned)v << 16); }
__device__ unsigned short put(float v) {  // to nearest even; a NaN stays one
    unsigned bits = __float_as_uint(v);
    if (v != v) return (unsigned short)(bits >> 16 | 0x40);
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
""",
}

Run = Callable[[Mapping[str, Any], Any], Callable[[], None]]
"""(tensors by name; stream) -> enqueue one run."""


@dataclass(frozen=True)
class Elementwise:
    """A `cupy.ElementwiseKernel`: `body` once per element of the outputs, `i` its index.

    reads, writes: names of the operands; parameters have the same names.
    raw: those of `reads` that `body` indexes by itself.
    """

    name: str
    reads: Sequence[str]
    writes: Sequence[str]
    body: str
    raw: Sequence[str] = ()


@dataclass(frozen=True)
class RowReduction:
    """A `cupy.ReductionKernel` over the columns of a matrix, in float32.

    reads: names of matrices, and of what has one element per row.
    """

    name: str
    reads: Sequence[str]
    write: str
    each: str  # expression in the element
    combine: str  # expression in a and b
    last: str  # statement in a
    identity: str


Kernel = Elementwise | RowReduction
Build = Callable[[Kernel, Mapping[str, Tensor], str], Run]
"""(kernel, operands by name, preamble) -> run. `Spec.toolchain` where it is not None."""


def unavailable() -> str | None:
    if importlib.util.find_spec("cupy") is None:
        return "cupy is not installed"
    for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
            return f"{name} {version} is older than {OLDEST[0]}.{OLDEST[1]}"
    return None


def prepare(
    spec: Spec, kernels: Sequence[Kernel], scratch: Sequence[Tensor] = (), preamble: str = ""
) -> Prepared:
    """Launches run `kernels` in order; what would write nothing is left out.

    preamble: text in front of every kernel, behind `get` and `put`.
    """
    known = spec.io.operands | {tensor.name: tensor for tensor in scratch}
    build: Build = spec.toolchain or build_for_gpu
    preamble = _PREAMBLE + _CONVERSIONS[spec.dtype.name] + preamble
    runs = [build(kernel, known, preamble) for kernel in kernels if _size(kernel, known)]

    def bind(tensors: Tensors, stream: Any) -> Launch:
        for name, tensor in known.items():
            check(tensor, tensors[name])
        launches = [run(tensors, stream) for run in runs]

        def launch() -> None:
            for enqueue in launches:
                enqueue()

        return launch

    return Prepared(bind=bind, scratch=tuple(scratch))


def literal(value: float) -> str:
    """A float32 constant in C."""
    return f"{value!r}f" if "e" in repr(value) or "." in repr(value) else f"{value!r}.0f"


def parameter(name: str, known: Mapping[str, Tensor], raw: Sequence[str] = ()) -> str:
    """`raw float16 x`, as CuPy declares it."""
    return f"{'raw ' if name in raw else ''}{_TYPES[known[name].dtype.name]} {name}"


def build_for_gpu(kernel: Kernel, known: Mapping[str, Tensor], preamble: str) -> Run:
    import cupy

    compiled: Any
    if isinstance(kernel, Elementwise):
        compiled = cupy.ElementwiseKernel(
            ", ".join(parameter(name, known, kernel.raw) for name in kernel.reads),
            ", ".join(parameter(name, known) for name in kernel.writes),
            kernel.body,
            kernel.name,
            preamble=preamble,
            no_return=True,
        )
        names, options = [*kernel.reads, *kernel.writes], dict[str, Any]()
        # `i` counts what is written
        shapes: list[tuple[int, ...]] = [(known[name].elements,) for name in names]
    else:
        compiled = cupy.ReductionKernel(
            ", ".join(parameter(name, known) for name in kernel.reads),
            parameter(kernel.write, known),
            kernel.each,
            kernel.combine,
            kernel.last,
            kernel.identity,
            kernel.name,
            reduce_type="float",
            preamble=preamble,
        )
        names, options = [*kernel.reads, kernel.write], {"axis": 1}
        shapes = [(*known[name].shape, 1)[:2] for name in kernel.reads]
        shapes.append(known[kernel.write].shape)

    def run(tensors: Tensors, stream: Any) -> Callable[[], None]:
        arrays = [
            _array(known[name], tensors[name], shape)
            for name, shape in zip(names, shapes, strict=True)
        ]
        own = stream_of(stream)

        def enqueue() -> None:
            compiled(*arrays, stream=own, **options)

        return enqueue

    return run


def check(tensor: Tensor, value: Any) -> None:
    """Raises ValueError for a view or another dtype: CuPy would read it as if it were neither."""
    if tuple(value.shape) != tuple(tensor.shape) or value.dtype != tensor.dtype.torch_dtype:
        raise ValueError(
            f"{tensor.name}: {tensor.dtype} {tensor.shape} expected; "
            f"got {value.dtype} {tuple(value.shape)}"
        )
    if not value.is_contiguous():
        raise ValueError(f"{tensor.name}: not contiguous")


def numpy_type(dtype: DType) -> str:
    """What CuPy takes elements of `dtype` for, in numpy's words."""
    return _TYPES[dtype.name]


def _array(tensor: Tensor, value: Any, shape: Sequence[int]) -> Any:
    """A CuPy array over the memory of `value`, which it keeps alive."""
    import cupy

    device = value.device.index or 0
    memory = cupy.cuda.UnownedMemory(value.data_ptr(), value.nbytes, value, device)
    pointer = cupy.cuda.MemoryPointer(memory, 0)
    return cupy.ndarray(tuple(map(int, shape)), numpy_type(tensor.dtype), memptr=pointer)


def stream_of(stream: Any) -> Any:
    import cupy

    if hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14
        return cupy.cuda.Stream.from_external(stream)
    return cupy.cuda.ExternalStream(stream.cuda_stream, stream.device_index)


def _size(kernel: Kernel, known: Mapping[str, Tensor]) -> int:
    written = kernel.writes[0] if isinstance(kernel, Elementwise) else kernel.write
    return known[written].elements
