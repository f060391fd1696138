"""The toolchain that a test puts into `Spec.toolchain`: kernels run here and now, on CPU tensors.

Every launch is checked (bounds, alignment, barriers, collectives) and leaves a `Launched` with
what it moved. With `sanitize` it runs in a child process under the address and undefined-behaviour
sanitizers instead, on buffers of exactly the size of the tensors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from membound.kernels.backends.cuda import Geometry, Kernel
from membound.kernels.backends.cuda_nvrtc import passed
from membound.kernels.target import KIB, Target

from . import sanitized
from .build import Library, Unit, defines_of, library, precompiled
from .layout import Launch, Traffic


class EmulatorError(Exception):
    """A launch that a GPU would not have survived, or not run as meant; says where and why."""


@dataclass(frozen=True)
class Launched:
    """One launch that ran: its geometry and, by data pointer, what each tensor moved."""

    kernel: str
    geometry: Geometry
    traffic: Mapping[int, Traffic]


@dataclass
class Libraries:
    """Compiled kernels by source. One translation unit holds all that were planned together."""

    planned: dict[tuple[Path, tuple[tuple[str, str], ...]], list[str]] = field(default_factory=dict)
    loaded: dict[Unit, Library] = field(default_factory=dict)

    def plan(self, source: Path, names: Sequence[str], defines: Mapping[str, str] | None) -> None:
        known = self.planned.setdefault((source, defines_of(defines)), [])
        known += [name for name in names if name not in known]

    def compile(self, *, sanitize: bool = False, workers: int = 2) -> None:
        """Compile everything planned, two units at a time."""
        units = [
            Unit(source, tuple(sorted(names)), defines, sanitize)
            for (source, defines), names in self.planned.items()
        ]
        precompiled(sanitize)  # once, before several threads want it
        with ThreadPoolExecutor(workers) as pool:
            self.loaded |= dict(zip(units, pool.map(library, units), strict=True))

    def find(self, source: Path, name: str, defines: Any, sanitize: bool) -> tuple[Path, int]:
        """The library that holds a kernel, and its place in it; compiled alone if in none."""
        wanted = (source, defines_of(defines), sanitize)
        for unit, built in self.loaded.items():
            if wanted == (unit.source, unit.defines, unit.sanitize) and name in built.names:
                return built.path, built.names.index(name)
        unit = Unit(source, (name,), defines_of(defines), sanitize)
        built = self.loaded[unit] = library(unit)
        return built.path, built.names.index(name)


@dataclass
class Planner:
    """A toolchain that builds nothing: it learns which kernels will be asked for."""

    libraries: Libraries

    def build(
        self,
        source: Path,
        names: Sequence[str],
        target: Target,
        defines: Mapping[str, str] | None = None,
    ) -> list[Kernel]:
        self.libraries.plan(source, names, defines)
        return [_Planned(name) for name in names]


@dataclass(frozen=True)
class _Planned:
    name: str
    attributes: Mapping[str, int] = field(default_factory=dict)

    def bind(self, stream: Any, geometry: Geometry, arguments: Any) -> Callable[[], None]:
        raise AssertionError("a planned kernel is not launched")


@dataclass
class EmulatorToolchain:
    """seed: order of blocks and threads. only_blocks: those of a grid to run. count: bytes too."""

    libraries: Libraries = field(default_factory=Libraries)
    seed: int = 1
    only_blocks: Callable[[Geometry], Sequence[int]] | None = None
    count: bool = True
    sanitize: bool = False
    launches: list[Launched] = field(default_factory=list)

    def build(
        self,
        source: Path,
        names: Sequence[str],
        target: Target,
        defines: Mapping[str, str] | None = None,
    ) -> list[Kernel]:
        found = [self.libraries.find(source, name, defines, self.sanitize) for name in names]
        return [
            EmulatedKernel(name, path, index, target, self)
            for name, (path, index) in zip(names, found, strict=True)
        ]


@dataclass(frozen=True)
class EmulatedKernel:
    name: str
    binary: Path
    index: int
    target: Target
    toolchain: EmulatorToolchain
    attributes: Mapping[str, int] = field(default_factory=dict)

    def bind(
        self,
        stream: Any,
        geometry: Geometry,
        arguments: Sequence[torch.Tensor | numpy.generic],
    ) -> Callable[[], None]:
        self._check(geometry)
        values = [passed(argument) for argument in arguments]
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]

        def run() -> None:
            if self.toolchain.sanitize:
                self._run_sanitized(geometry, list(arguments))
            else:
                self._run(geometry, values, tensors)

        return run

    def _check(self, geometry: Geometry) -> None:
        if not 1 <= geometry.threads <= 1024 or not 1 <= geometry.blocks < 2**31:
            raise EmulatorError(f"{self.name}: no GPU launches {geometry}")
        if geometry.shared_bytes > self.target.shared_per_block:
            limit = self.target.shared_per_block // KIB
            raise EmulatorError(
                f"{self.name}: {geometry} exceeds {limit} KiB of {self.target.arch}"
            )
        if not 1 <= geometry.cluster <= self.target.blocks_per_cluster:
            raise EmulatorError(f"{self.name}: {geometry} on {self.target.arch}")
        if geometry.blocks % geometry.cluster:
            raise EmulatorError(f"{self.name}: {geometry} has no whole number of clusters")

    def _run(
        self,
        geometry: Geometry,
        values: Sequence[int | numpy.generic],
        tensors: Sequence[torch.Tensor],
    ) -> None:
        toolchain = self.toolchain
        unique = list({tensor.data_ptr(): tensor for tensor in tensors if tensor.numel()}.values())
        traffic = (Traffic * max(len(unique), 1))()
        error = ctypes.create_string_buffer(512)
        launch, kept = Launch.of(
            geometry,
            [(t.data_ptr(), t.numel() * t.element_size()) for t in unique],
            seed=toolchain.seed,
            only_blocks=toolchain.only_blocks(geometry) if toolchain.only_blocks else None,
            count=toolchain.count,
        )
        launch.traffic = ctypes.cast(traffic, ctypes.c_void_p)
        launch.error = ctypes.cast(error, ctypes.c_void_p)
        arguments, boxes = argument_array(values)
        run_kernel = ctypes.CDLL(str(self.binary)).run_kernel
        if run_kernel(self.index, ctypes.byref(launch), arguments):
            raise EmulatorError(f"{self.name}: {error.value.decode()}")
        del kept, boxes
        moved = {t.data_ptr(): traffic[i] for i, t in enumerate(unique)}
        toolchain.launches.append(Launched(self.name, geometry, moved))

    def _run_sanitized(
        self, geometry: Geometry, arguments: list[torch.Tensor | numpy.generic]
    ) -> None:
        report = sanitized.run(
            self.binary, self.index, geometry, arguments, seed=self.toolchain.seed
        )
        if report:
            raise EmulatorError(f"{self.name}: {report}")


def argument_array(values: Sequence[int | numpy.generic]) -> tuple[Any, list[Any]]:
    """void** as a kernel launch takes it, and what it points to."""
    boxes: list[Any] = []
    for value in values:
        raw = value.tobytes() if isinstance(value, numpy.generic) else value.to_bytes(8, "little")
        boxes.append(ctypes.create_string_buffer(raw, len(raw)))
    pointers = (ctypes.c_void_p * max(len(boxes), 1))()
    for i, box in enumerate(boxes):
        pointers[i] = ctypes.addressof(box)
    return pointers, boxes
