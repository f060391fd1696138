"""NVRTC, a disk cache of cubins, and the driver: how CUDA C++ is built and launched on a GPU.

Compiling needs no GPU. `NvrtcToolchain` compiles and loads; `CompileOnly` compiles for any
architecture and records what would have been launched, for audits.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..spec import CannotPrepare, DoesNotCompile
from ..target import KIB, Target
from .cuda import INCLUDE, Geometry, Kernel

if TYPE_CHECKING:
    import numpy
    import torch

STANDARD = "c++17"

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)


@dataclass(frozen=True)
class Compiled:
    """Machine code and the mangled name of every kernel that was asked for."""

    code: bytes
    symbols: Mapping[str, str]


def cache_folder(kind: str) -> Path:
    """Where compiled `kind` are kept: MEMBOUND_CACHE, else XDG_CACHE_HOME/membound."""
    root = os.environ.get("MEMBOUND_CACHE")
    if root:
        return Path(root) / kind
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "membound" / kind


def include_folders() -> list[Path]:
    """Ours, then the CUDA headers. Raises CannotPrepare naming the package that is missing."""
    from cuda.pathfinder import find_nvidia_header_directory

    runtime = find_nvidia_header_directory("cudart")
    if runtime is None:
        raise CannotPrepare("cuda_fp16.h not found (pip install 'cuda-toolkit[cudart,crt,cccl]')")
    cccl = find_nvidia_header_directory("cccl")
    return [INCLUDE, *(Path(folder) for folder in (runtime, cccl) if folder)]


def read_with_headers(source: Path, folders: Sequence[Path]) -> Iterator[bytes]:
    """The source and every header it reaches that lies beside it or in `folders`."""
    pending, seen = [source], {source}
    while pending:
        file = pending.pop()
        text = file.read_bytes()
        yield text
        for name in _INCLUDE.findall(text.decode(errors="replace")):
            places = (folder / name for folder in (file.parent, *folders))
            header = next((place for place in places if place.is_file()), None)
            if header is not None and header not in seen:
                seen.add(header)
                pending.append(header)


def alone(arch: str) -> str:
    """`arch` as a target that code for other devices need not run on: "sm_121a" of "sm_121".

    What is built here runs on the device it is built for. From sm_100 on such code may convert
    4-bit floats by instructions (PTX ISA, `cvt`, target notes).
    """
    return arch + "a" if int(arch.removeprefix("sm_")) >= 100 else arch


def compile_cubin(
    source: Path, names: Sequence[str], arch: str, defines: Mapping[str, str] | None = None
) -> Compiled:
    """Kernels `names` of `source` as a cubin for `arch` ("sm_121"), from the cache if it is there.

    Raises DoesNotCompile with the first error.
    """
    from cuda.bindings import nvrtc

    arch = alone(arch)
    _, *version = nvrtc.nvrtcVersion()
    folders = include_folders()
    key = hashlib.sha256(repr((list(names), arch, defines or {}, STANDARD, version)).encode())
    for text in read_with_headers(source, folders):
        key.update(hashlib.sha256(text).digest())
    entry = cache_folder("cubins") / key.hexdigest()[:32]
    cached = _read(entry)
    if cached is not None:
        return cached
    compiled = _compile(source, names, arch, defines or {}, folders)
    _write(entry, compiled)
    return compiled


def _compile(
    source: Path,
    names: Sequence[str],
    arch: str,
    defines: Mapping[str, str],
    folders: Sequence[Path],
) -> Compiled:
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        name=source.name,
        arch=arch,
        std=STANDARD,
        include_path=[str(source.parent), *map(str, folders)],
        define_macro=list(defines.items()) or None,
    )
    try:
        program = Program(source.read_text(), "c++", options)
        built = program.compile("cubin", name_expressions=tuple(names))
    except Exception as error:
        if type(error).__name__ != "NVRTCError":  # cuda.core exports no name for it
            raise
        raise DoesNotCompile(f"{source.name} for {arch}: {first_error(str(error))}") from error
    mangled = {str(name): _text(symbol) for name, symbol in built.symbol_mapping.items()}
    return Compiled(bytes(built.code), mangled)


def first_error(log: str) -> str:
    """The first line of a compiler's log that says error, else its first line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if re.search(r"\berror\b", line)), (lines or ["?"])[0])


def _text(symbol: str | bytes) -> str:
    return symbol.decode() if isinstance(symbol, bytes) else symbol


def _read(entry: Path) -> Compiled | None:
    """A cache entry that is whole, or None: whatever is damaged is built again."""
    try:
        code = entry.with_suffix(".cubin").read_bytes()
        about = json.loads(entry.with_suffix(".json").read_text())
        if about["sha256"] != hashlib.sha256(code).hexdigest():
            return None
        return Compiled(code, {str(k): str(v) for k, v in about["symbols"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(entry: Path, compiled: Compiled) -> None:
    """Best effort: a cache that cannot be written costs a compilation, not the run."""
    about = {
        "sha256": hashlib.sha256(compiled.code).hexdigest(),
        "symbols": dict(compiled.symbols),
    }
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        replace_file(entry.with_suffix(".cubin"), compiled.code)
        replace_file(entry.with_suffix(".json"), json.dumps(about).encode())
    except OSError:
        return


def replace_file(path: Path, content: bytes) -> None:
    """Write `path` so that no reader ever sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class NvrtcToolchain:
    """Compiles with NVRTC, loads and launches through the driver."""

    def build(
        self,
        source: Path,
        names: Sequence[str],
        target: Target,
        defines: Mapping[str, str] | None = None,
    ) -> list[Kernel]:
        from cuda.core import Device, ObjectCode

        compiled = compile_cubin(source, names, target.arch, defines)
        Device(target.ordinal).set_current()
        module = ObjectCode.from_cubin(compiled.code, symbol_mapping=dict(compiled.symbols))
        return [_Loaded(name, module.get_kernel(name), target) for name in names]


@dataclass(frozen=True)
class _Loaded:
    name: str
    _kernel: Any  # cuda.core.Kernel
    _target: Target

    @property
    def attributes(self) -> Mapping[str, int]:
        known = self._kernel.attributes
        return {
            "registers": known.num_regs,
            "shared_bytes": known.shared_size_bytes,
            "local_bytes": known.local_size_bytes,
        }

    def bind(
        self, stream: Any, geometry: Geometry, arguments: Sequence[torch.Tensor | numpy.generic]
    ) -> Callable[[], None]:
        from cuda.core import LaunchConfig, launch

        values = [passed(argument) for argument in arguments]
        if geometry.shared_bytes > 48 * KIB:
            self._opt_in(geometry.shared_bytes)
        config = LaunchConfig(
            grid=geometry.blocks // geometry.cluster,  # with a cluster, the grid counts clusters
            block=geometry.threads,
            shmem_size=geometry.shared_bytes,
            cluster=geometry.cluster if geometry.cluster > 1 else None,
        )

        def run() -> None:
            launch(stream, config, self._kernel, *values)

        return run

    def _opt_in(self, shared_bytes: int) -> None:
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        device = driver.CUdevice(self._target.ordinal)
        (status,) = driver.cuKernelSetAttribute(
            attribute, shared_bytes, self._kernel.handle, device
        )
        if status != driver.CUresult.CUDA_SUCCESS:
            raise CannotPrepare(
                f"{self.name}: {shared_bytes} bytes of shared memory: {status.name}"
            )


def passed(argument: torch.Tensor | numpy.generic) -> int | numpy.generic:
    """What a launch is given: an address for a tensor, a numpy scalar as it is.

    Raises ValueError for a Python number, whose width a kernel could not know.
    """
    import numpy
    import torch

    if isinstance(argument, torch.Tensor):
        return argument.data_ptr()
    if isinstance(argument, numpy.generic):
        return argument
    raise ValueError(f"a kernel takes tensors and numpy scalars, not {type(argument).__name__}")


@dataclass(frozen=True)
class Recorded:
    """One launch that was not made, and the arguments it would have been given."""

    kernel: CompiledKernel
    geometry: Geometry
    arguments: tuple[torch.Tensor | numpy.generic, ...]


@dataclass
class CompileOnly:
    """Compiles for the architecture of the target, on any machine; binding records launches.

    together: names to compile at once wherever one of them is asked for, by source; `compiled`
    keeps what that gave.
    """

    together: Mapping[Path, Sequence[str]] = field(default_factory=dict)
    compiled: dict[tuple[Path, str, str], Compiled] = field(default_factory=dict, repr=False)
    kernels: list[CompiledKernel] = field(default_factory=list)
    launches: list[Recorded] = field(default_factory=list)

    def build(
        self,
        source: Path,
        names: Sequence[str],
        target: Target,
        defines: Mapping[str, str] | None = None,
    ) -> list[Kernel]:
        start = time.perf_counter()
        planned = self.together.get(source, ())
        everything = [*planned, *(name for name in names if name not in planned)]
        key = source, target.arch, repr((everything, defines or {}))
        if key not in self.compiled:
            self.compiled[key] = compile_cubin(source, everything, target.arch, defines)
        compiled = self.compiled[key]
        seconds = time.perf_counter() - start
        built = [
            CompiledKernel(name, source, compiled, target, seconds, self.launches) for name in names
        ]
        self.kernels += built
        return [*built]


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel that exists as machine code only. Its attributes are an audit's to read."""

    name: str
    source: Path
    compiled: Compiled
    target: Target
    seconds: float
    _launches: list[Recorded] = field(repr=False, compare=False)

    @property
    def symbol(self) -> str:
        return self.compiled.symbols[self.name]

    @property
    def attributes(self) -> Mapping[str, int]:
        return {}

    def bind(
        self, stream: Any, geometry: Geometry, arguments: Sequence[torch.Tensor | numpy.generic]
    ) -> Callable[[], None]:
        for argument in arguments:
            passed(argument)
        self._launches.append(Recorded(self, geometry, tuple(arguments)))
        return lambda: None
