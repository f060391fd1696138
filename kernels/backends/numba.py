"""Numba CUDA: a launch described once, then compiled for a GPU, to PTX, or simulated.

Kernels are made by functions that close over every constant, so that a launch passes nothing but
arrays. 16-bit floats travel as uint16: Numba's own half types convert one element at a time.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..operation import Tensor
from ..spec import CannotPrepare, Launch, Prepared, Spec, Tensors
from ..target import Target

OLDEST = (0, 30)
_ALIGNMENT = 16  # bytes, of the widest access
_ELEMENTS = {
    "float32": "float32",
    "float16": "uint16",
    "bfloat16": "uint16",
    "uint8": "uint8",
}

Run = Callable[[Sequence[Any], Any], Callable[[], None]]
"""(flat tensors in the order of the parameters; stream) -> enqueue one run."""


@dataclass(frozen=True)
class Kernel:
    """One launch of a Python function that Numba compiles.

    operands: names of the operand or scratch tensors its parameters are, in order.
    resident: blocks that shall fit a multiprocessor, which bounds the registers; None is free.
    """

    function: Callable[..., None]
    operands: Sequence[str]
    grid: tuple[int, int]
    block: tuple[int, int]
    resident: int | None = None

    def signature(self, known: Mapping[str, Tensor]) -> Any:
        from numba import types

        arrays = [
            types.Array(getattr(types, _ELEMENTS[known[name].dtype.name]), 1, "C")
            for name in self.operands
        ]
        return types.void(*arrays)

    @property
    def launch_bounds(self) -> tuple[int, ...]:
        threads = self.block[0] * self.block[1]
        return (threads,) if self.resident is None else (threads, self.resident)


Build = Callable[[Kernel, Mapping[str, Tensor], Target], Run]
"""(kernel, operands and scratch by name, target) -> run. `Spec.toolchain` where it is not None."""


def unavailable() -> str | None:
    if importlib.util.find_spec("numba_cuda") is None:
        return "numba-cuda is not installed"
    version = importlib.metadata.version("numba-cuda")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return f"numba-cuda {version} is older than {OLDEST[0]}.{OLDEST[1]}"
    return None


def prepare(spec: Spec, kernels: Sequence[Kernel], scratch: Sequence[Tensor] = ()) -> Prepared:
    """Compile `kernels`; launches run them in order, empty grids left out.

    Raises CannotPrepare where a kernel does not compile.
    """
    known = spec.io.operands | {tensor.name: tensor for tensor in scratch}
    build: Build = spec.toolchain or build_for_gpu
    start = time.perf_counter()
    runs = [(kernel, build(kernel, known, spec.target)) for kernel in kernels if all(kernel.grid)]
    seconds = time.perf_counter() - start

    def bind(tensors: Tensors, stream: Any) -> Launch:
        flat = {name: _flat(tensor, tensors[name]) for name, tensor in known.items()}
        launches = [run([flat[name] for name in kernel.operands], stream) for kernel, run in runs]

        def launch() -> None:
            for enqueue in launches:
                enqueue()

        return launch

    return Prepared(bind=bind, scratch=tuple(scratch), compile_seconds=seconds)


def ptx(kernel: Kernel, known: Mapping[str, Tensor], target: Target) -> str:
    """PTX of `kernel` for `target`, no GPU needed."""
    from unittest.mock import Mock, patch

    from numba import cuda

    # `compile_ptx` takes the architecture, but the device functions it meets ask the driver.
    device = Mock(compute_capability=divmod(target.sm, 10))
    with patch("numba.cuda.dispatcher.get_current_device", return_value=device):
        text, _ = cuda.compile_ptx(
            kernel.function,
            kernel.signature(known),
            cc=device.compute_capability,
            launch_bounds=kernel.launch_bounds,
        )
    return str(text)


def build_for_gpu(kernel: Kernel, known: Mapping[str, Tensor], target: Target) -> Run:
    from numba import cuda

    jit = cuda.jit(kernel.signature(known), launch_bounds=kernel.launch_bounds)
    try:
        compiled = jit(kernel.function)
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise CannotPrepare(f"Numba: {type(error).__name__}: {first}") from error

    def run(arguments: Sequence[Any], stream: Any) -> Callable[[], None]:
        import torch

        # Numba takes the current context; small grids, which it warns of, are small on purpose.
        with torch.cuda.device(stream.device), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arrays = [cuda.as_cuda_array(tensor, sync=False) for tensor in arguments]
            external = cuda.external_stream(stream.cuda_stream)
            configured = compiled[kernel.grid, kernel.block, external]
        return lambda: configured(*arrays)

    return run


def _flat(tensor: Tensor, value: Any) -> Any:
    """`value` as one run of the elements Numba sees; views and other dtypes are refused."""
    import torch

    if tuple(value.shape) != tuple(tensor.shape) or value.dtype != tensor.dtype.torch_dtype:
        raise ValueError(
            f"{tensor.name}: {tensor.dtype} {tensor.shape} expected; "
            f"got {value.dtype} {tuple(value.shape)}"
        )
    if not value.is_contiguous() or value.data_ptr() % _ALIGNMENT:
        raise ValueError(f"{tensor.name}: not contiguous from a {_ALIGNMENT}-byte boundary")
    seen: torch.dtype = getattr(torch, _ELEMENTS[tensor.dtype.name])
    return value.view(-1).view(seen)
