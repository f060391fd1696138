"""Triton: a launch described once, then compiled for any architecture and launched.

A kernel file lists its launches as `Kernel`s. From that one description `prepare` compiles and
launches on a GPU, the interpreter runs on the CPU, and an audit compiles where no GPU is present.
Every shape is a compile-time constant, so a launch passes nothing but pointers.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..dtypes import DTYPES
from ..operation import Tensor
from ..spec import CannotPrepare, Choice, Launch, Prepared, Spec, Tensors
from ..target import Target

if TYPE_CHECKING:
    import torch

OLDEST = (3, 6)
_ALIGNMENT = 16  # bytes; promised to the compiler, so that accesses may be 16 bytes wide
_TIMED = 5  # launches of a configuration, after a first one
_POINTERS = {
    "float32": "*fp32",
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "uint8": "*u8",
    "int8": "*i8",
    "int32": "*i32",
    "int64": "*i64",
    **{code.name: "*u8" for code in DTYPES.values() if code.largest},
}

Run = Callable[[Sequence[Any], Any], Callable[[], None]]
"""(arguments in the order of the parameters, tensors for pointers; stream) -> enqueue one run."""


@dataclass(frozen=True)
class Kernel:
    """One launch of a `@triton.jit` function.

    pointers: parameter -> name of the operand or scratch tensor it points to.
    constants: parameter -> compile-time value; with `pointers` it covers every parameter.
    registers: limit per thread, where the grid counts on several blocks being resident.
    """

    function: Any
    pointers: Mapping[str, str]
    constants: Mapping[str, Any]
    grid: tuple[int, int, int]
    num_warps: int
    registers: int | None = None

    def arguments(self, tensors: Tensors) -> list[Any]:
        """What the function is called with, in order."""
        return [
            _bytes_of_codes(tensors[self.pointers[name]])
            if name in self.pointers
            else self.constants[name]
            for name in self.function.arg_names
        ]


Build = Callable[[Kernel, Mapping[str, Tensor], Target], Run]
"""(kernel, operands and scratch by name, target) -> run. `Spec.toolchain` where it is not None."""


def unavailable() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # nightlies are renamed
        version = importlib.metadata.version("triton")
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
            return f"triton {version} is older than {OLDEST[0]}.{OLDEST[1]}"
    return None


def prepare(spec: Spec, kernels: Sequence[Kernel], scratch: Sequence[Tensor] = ()) -> Prepared:
    """Compile `kernels` for the target; launches run them in order, empty grids left out.

    Raises CannotPrepare where a kernel does not compile for this target.
    """
    known = spec.io.operands | {tensor.name: tensor for tensor in scratch}
    build: Build = spec.toolchain or build_for_gpu
    start = time.perf_counter()
    runs = [(kernel, build(kernel, known, spec.target)) for kernel in kernels if all(kernel.grid)]
    seconds = time.perf_counter() - start

    def bind(tensors: Tensors, stream: Any) -> Launch:
        for name, tensor in known.items():
            _check(tensor, tensors[name])
        launches = [run(kernel.arguments(tensors), stream) for kernel, run in runs]

        def launch() -> None:
            for enqueue in launches:
                enqueue()

        return launch

    return Prepared(bind=bind, scratch=tuple(scratch), compile_seconds=seconds)


@dataclass(frozen=True)
class Plan:
    """The launches of one configuration, and the buffers they need beside the operands."""

    kernels: Sequence[Kernel]
    scratch: Sequence[Tensor] = ()


def choose(
    spec: Spec, plan: Callable[[Choice], Plan], configurations: Sequence[Choice]
) -> Prepared:
    """Prepare the configuration of this run: `spec.choice`, else the fastest here.

    The first one is taken untimed where kernels are not built for a GPU, and where nothing moves.
    One that does not compile is left out. Raises CannotPrepare where none does.
    """
    if spec.choice:
        return _configured(spec, plan, spec.choice)
    moves = any(tensor.elements for tensor in spec.io.outputs)
    if spec.toolchain is not None or not moves or not _gpu():
        return _configured(spec, plan, configurations[0])
    able: list[Prepared] = []
    refused: list[CannotPrepare] = []
    for configuration in configurations:
        try:
            able.append(_configured(spec, plan, configuration))
        except CannotPrepare as reason:
            refused.append(reason)
    if not able:
        raise refused[0]
    fastest = able[0] if len(able) == 1 else _fastest(spec, able)
    seconds = sum(one.compile_seconds or 0.0 for one in able)
    return replace(fastest, compile_seconds=seconds)


def _configured(spec: Spec, plan: Callable[[Choice], Plan], choice: Choice) -> Prepared:
    planned = plan(choice)
    return replace(prepare(spec, planned.kernels, planned.scratch), choice=dict(choice))


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _fastest(spec: Spec, prepared: Sequence[Prepared]) -> Prepared:
    """Of `prepared`, by the shortest of a few launches each; the first where memory is short."""
    import torch

    stream = torch.cuda.current_stream()
    try:
        tensors = _allocated([*spec.io.operands.values()])
        seconds = [
            _seconds(one.bind(tensors | _allocated(one.scratch), stream), stream)
            for one in prepared
        ]
    except torch.cuda.OutOfMemoryError:
        return prepared[0]
    return prepared[seconds.index(min(seconds))]


def _allocated(tensors: Sequence[Tensor]) -> dict[str, Any]:
    """Zeros: whatever is an index is then a valid one."""
    import torch

    return {
        tensor.name: torch.zeros(tensor.nbytes, dtype=torch.uint8, device="cuda")
        .view(tensor.dtype.torch_dtype)
        .reshape(tensor.shape)
        for tensor in tensors
    }


def _seconds(launch: Launch, stream: Any) -> float:
    import torch

    launch()
    mark_time: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True)
    marks = [mark_time() for _ in range(_TIMED + 1)]
    marks[0].record(stream)
    for mark in marks[1:]:
        launch()
        mark.record(stream)
    marks[-1].synchronize()
    between = pairwise(marks)
    return min(float(start.elapsed_time(end)) for start, end in between) / 1000


def compile_kernel(kernel: Kernel, known: Mapping[str, Tensor], target: Target) -> Any:
    """`kernel` compiled for `target`, no GPU needed: a `triton.compiler.CompiledKernel`.

    Raises CannotPrepare where it does not compile, naming the remedy where ptxas is too old.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {
        name: _POINTERS[known[kernel.pointers[name]].dtype.name]
        if name in kernel.pointers
        else "constexpr"
        for name in kernel.function.arg_names
    }
    aligned = {
        (position,): [["tt.divisibility", _ALIGNMENT]]
        for position, kind in enumerate(signature.values())
        if kind != "constexpr"
    }
    options = {
        "num_warps": kernel.num_warps,
        "maxnreg": kernel.registers,
        "enable_fp_fusion": True,
    }
    source = ASTSource(kernel.function, signature, dict(kernel.constants), aligned)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # a failing ptxas prints all of its input
            return triton.compile(source, GPUTarget("cuda", target.sm, 32), options)
    except Exception as error:
        raise CannotPrepare(_reason(error, target)) from error


def build_for_gpu(kernel: Kernel, known: Mapping[str, Tensor], target: Target) -> Run:
    compiled = compile_kernel(kernel, known, target)

    def run(arguments: Sequence[Any], stream: Any) -> Callable[[], None]:
        import torch

        # Addresses: Triton asks the driver about every tensor object it is given.
        values = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments]
        with torch.cuda.device(stream.device):  # the module is loaded on the current device
            enqueue = compiled[kernel.grid]
        handle = stream.cuda_stream
        return lambda: enqueue(*values, stream=handle)

    return run


def tiles(elements: int, per_program: int) -> int:
    """Programs that cover `elements`."""
    return -(-elements // per_program)


def power_of_two(n: int) -> int:
    """Smallest power of two that is at least n and 1."""
    return 1 << max(n - 1, 0).bit_length()


def _bytes_of_codes(value: torch.Tensor) -> torch.Tensor:
    """Floats of 8 bits as bytes: what `_POINTERS` makes of them."""
    import torch

    is_code = value.is_floating_point() and value.dtype.itemsize == 1
    return value.view(torch.uint8) if is_code else value


def _check(tensor: Tensor, value: Any) -> None:
    if value.numel() != tensor.elements or value.dtype != tensor.dtype.torch_dtype:
        raise ValueError(
            f"{tensor.name}: {tensor.dtype} {tensor.shape} expected; "
            f"got {value.dtype} {tuple(value.shape)}"
        )
    if not value.is_contiguous() or value.data_ptr() % _ALIGNMENT:
        raise ValueError(f"{tensor.name}: not contiguous from a {_ALIGNMENT}-byte boundary")


def _reason(error: Exception, target: Target) -> str:
    text = "\n".join(_chain(error))
    if "gpu-name" in text:
        variable = "TRITON_PTXAS_BLACKWELL_PATH" if target.sm >= 90 else "TRITON_PTXAS_PATH"
        return (
            f"Triton's ptxas does not know {target.arch}: set TRITON_PTXAS_PATH and {variable} "
            "to the ptxas of a newer CUDA toolkit"
        )
    lines = [line for line in text.splitlines() if line.strip()]
    return f"Triton: {type(error).__name__}: {lines[0] if lines else 'no message'}"


def _chain(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield str(error)
        error = error.__cause__
