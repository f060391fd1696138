"""CUDA C++ by way of CuPy: a `cupy.RawModule` of the same `.cu` that `cuda` compiles and launches.

Kernels, plans and arguments are those of the `cuda` implementation; CuPy compiles, loads and
launches them, so that what differs between the two is how a kernel is launched. CuPy launches no
clusters: rows that need one are read twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from ..spec import CannotPrepare, DoesNotCompile, Prepared, Spec
from ..target import KIB, Target
from .cuda import INCLUDE, Geometry, Kernel
from .cuda_nvrtc import STANDARD, first_error, include_folders, passed, read_with_headers
from .cupy import stream_of

if TYPE_CHECKING:
    import torch

Prepare = Callable[[str, Spec], Prepared]


def prepare_raw(prepare: Prepare, direction: str, spec: Spec) -> Prepared:
    """What `prepare`, of the `cuda` implementation, makes of it with CuPy's toolchain."""
    target = replace(spec.target, blocks_per_cluster=1)
    toolchain = spec.toolchain or RawToolchain()
    return prepare(direction, replace(spec, variant="", target=target, toolchain=toolchain))


@dataclass(frozen=True)
class RawToolchain:
    """CuPy compiles for the device it runs on."""

    def build(
        self,
        source: Path,
        names: Sequence[str],
        target: Target,
        defines: Mapping[str, str] | None = None,
    ) -> list[Kernel]:
        import cupy
        from cupy.cuda.compiler import CompileException

        cupy.cuda.Device(target.ordinal).use()
        module = cupy.RawModule(
            code=source.read_text(),
            options=options(source, defines or {}),
            name_expressions=tuple(names),
        )
        try:
            return [_Raw(name, module.get_function(name)) for name in names]
        except CompileException as error:
            raise DoesNotCompile(f"{source.name} in CuPy: {first_error(str(error))}") from error


def options(source: Path, defines: Mapping[str, str]) -> tuple[str, ...]:
    """What NVRTC is given, with a digest of the headers: CuPy's cache sees options and source only,
    and would go on with what it made of older ones."""
    folders = _folders()
    digest = hashlib.sha256()
    for text in read_with_headers(source, folders):
        digest.update(hashlib.sha256(text).digest())
    known = {**defines, "MEMBOUND_SOURCES": f"0x{digest.hexdigest()[:16]}"}
    return (
        f"--std={STANDARD}",
        *(f"-I{folder}" for folder in (source.parent, *folders)),
        *(f"-D{name}={value}" for name, value in known.items()),
    )


def _folders() -> list[Path]:
    try:
        return include_folders()
    except ImportError:  # without cuda.pathfinder CuPy looks for the toolkit by itself
        return [INCLUDE]


@dataclass(frozen=True)
class _Raw:
    name: str
    _raw: Any  # cupy.RawKernel

    @property
    def attributes(self) -> Mapping[str, int]:
        return {
            "registers": self._raw.num_regs,
            "shared_bytes": self._raw.shared_size_bytes,
            "local_bytes": self._raw.local_size_bytes,
        }

    def bind(
        self, stream: Any, geometry: Geometry, arguments: Sequence[torch.Tensor | numpy.generic]
    ) -> Callable[[], None]:
        if geometry.cluster > 1:
            raise CannotPrepare("CuPy launches no clusters")
        values = tuple(_address(passed(argument)) for argument in arguments)
        if geometry.shared_bytes > 48 * KIB:
            self._raw.max_dynamic_shared_size_bytes = geometry.shared_bytes
        own = stream_of(stream)
        grid, block, shared = (geometry.blocks,), (geometry.threads,), geometry.shared_bytes

        def run() -> None:
            self._raw(grid, block, values, shared_mem=shared, stream=own)

        return run


def _address(value: int | numpy.generic) -> numpy.generic:
    """A pointer as CuPy passes one that is not an array's: it makes a signed number of an int."""
    return value if isinstance(value, numpy.generic) else numpy.uint64(value)
