"""CUDA C++: how an implementation has its `.cu` built and its kernels launched.

An implementation names a source, the kernels in it (as C++ names them, templates spelled out) and
a geometry; a toolchain does the rest. The default one is NVRTC and the driver (`cuda_nvrtc`);
`Spec.toolchain` puts another in its place, and `prepare` and `bind` cannot tell.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..operation import Tensor
from ..spec import CannotPrepare, Spec, Tensors
from ..target import Target

if TYPE_CHECKING:
    import numpy
    import torch

INCLUDE = Path(__file__).resolve().parent.parent / "include"

TYPES = {
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int32": "int",
    "int64": "long long",
}
"""C++ spelling of an element type."""

MAX_BLOCKS = 2**31 - 1
"""Largest grid in x; geometries here have no other axis."""


def unavailable() -> str | None:
    """Why CUDA C++ can be neither compiled nor launched here, or None."""
    missing = [name for name in ("cuda.core", "cuda.bindings") if not _installed(name)]
    return f"{missing[0]} is not installed (pip install 'cuda-core[cu13]')" if missing else None


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # no `cuda` at all
        return False


@dataclass(frozen=True)
class Geometry:
    """A launch: blocks in x, threads per block, dynamic shared memory, blocks per cluster."""

    blocks: int
    threads: int
    shared_bytes: int = 0
    cluster: int = 1


class Kernel(Protocol):
    """One compiled kernel.

    attributes: `registers`, `shared_bytes` (static), `local_bytes` per thread, where known.
    """

    @property
    def name(self) -> str: ...

    @property
    def attributes(self) -> Mapping[str, int]: ...

    def bind(
        self, stream: Any, geometry: Geometry, arguments: Sequence[torch.Tensor | numpy.generic]
    ) -> Callable[[], None]:
        """A launch on `stream`. Tensors are passed as pointers, numpy scalars by value.

        Whoever calls keeps the tensors alive. Raises ValueError for any other argument.
        """
        ...


class Toolchain(Protocol):
    def build(
        self,
        source: Path,
        names: Sequence[str],
        target: Target,
        defines: Mapping[str, str] | None = None,
    ) -> list[Kernel]:
        """Kernels `names` of `source` for this architecture, in order, in one compilation.

        Raises CannotPrepare with the first line of what the compiler said.
        """
        ...


def build(spec: Spec, source: Path, *names: str, **defines: str) -> list[Kernel]:
    """Build with the toolchain of the spec, which is NVRTC unless it brings its own."""
    toolchain: Toolchain = spec.toolchain
    if toolchain is None:
        from .cuda_nvrtc import NvrtcToolchain

        toolchain = NvrtcToolchain()
    return toolchain.build(source, names, spec.target, defines)


def operands(tensors: Tensors, declared: Iterable[Tensor]) -> list[torch.Tensor]:
    """The tensors of `declared`, in its order.

    Raises ValueError, in one line, for one that is missing or has another dtype, another size, a
    stride, or an address that its element size does not divide.
    """
    return [_checked(tensors.get(one.name), one) for one in declared]


def _checked(tensor: torch.Tensor | None, declared: Tensor) -> torch.Tensor:
    wanted = f"{declared.name} must be {declared.dtype} {tuple(map(int, declared.shape))}"
    if tensor is None:
        raise ValueError(f"{wanted}; there is none")
    if tensor.dtype != declared.dtype.torch_dtype or tensor.numel() != declared.elements:
        raise ValueError(f"{wanted}; got {tensor.dtype} {tuple(tensor.shape)}")
    if not tensor.is_contiguous():
        raise ValueError(f"{wanted}, contiguous; got strides {tensor.stride()}")
    if tensor.data_ptr() % tensor.element_size():
        raise ValueError(f"{wanted}; its address is no multiple of {tensor.element_size()}")
    return tensor


def vector_bytes(target: Target) -> int:
    """Widest access of one thread: 16 bytes; 32 from sm_100 on, which is worth 7 to 12 % there."""
    return 32 if target.sm >= 100 else 16


def reuse(spec: Spec) -> str:
    """C++ spelling of how outputs are stored: streamed, or left in the cache for the next step."""
    return "Reuse::kNever" if spec.streaming else "Reuse::kSoon"


def blocks_for(items: int, per_block: int) -> int:
    """Blocks that cover `items`. Raises CannotPrepare where no grid is that large."""
    blocks = -(-items // per_block)
    if blocks > MAX_BLOCKS:
        raise CannotPrepare(f"{blocks} blocks exceed the largest grid, {MAX_BLOCKS}")
    return blocks
