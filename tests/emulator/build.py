"""Compiles a `.cu` with g++ into a library whose kernels are fibres; cached by content."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from membound.kernels.backends.cuda_nvrtc import (
    cache_folder,
    first_error,
    include_folders,
    read_with_headers,
)
from membound.kernels.spec import CannotPrepare

from .build_tools import COMPILER, compiler_version

HERE = Path(__file__).resolve().parent
FLAGS = (
    *("-std=c++17", "-O1", "-shared", "-fPIC", "-fno-strict-aliasing", "-fvisibility=hidden"),
    *("-DMEMBOUND_EMULATOR", "-Wno-unknown-pragmas", "-w"),
)
SANITIZE = (
    "-fsanitize=address,alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero",
    *("-fno-sanitize-recover=all", "-DEMULATOR_UNCHECKED"),
)
"""Those of the undefined behaviours that a kernel could have; all of them take twice as long to
compile. The sanitizers judge every access; the emulator's own bounds would only be there first."""


@dataclass(frozen=True)
class Unit:
    """What one library is made of."""

    source: Path
    names: tuple[str, ...]
    defines: tuple[tuple[str, str], ...] = ()
    sanitize: bool = False

    @property
    def flags(self) -> list[str]:
        flags = [*FLAGS, *(SANITIZE if self.sanitize else ())]
        return flags + [f"-D{name}={value}" for name, value in self.defines]

    @property
    def text(self) -> str:
        """The translation unit: the source, and a table of the kernels that were asked for."""
        calls = "\n".join(
            f"  [](void** a) {{ emulator::call(&{name}, a); }}," for name in self.names
        )
        return (
            f'#include "emulator.hpp"\n#include "{self.source}"\n'
            f"static void (*const kernels[])(void**) = {{\n{calls}\n}};\n"
            'extern "C" __attribute__((visibility("default")))\n'
            "int run_kernel(int kernel, const emulator::Launch* launch, void** arguments) {\n"
            "  return emulator::run(*launch, kernels[kernel], arguments);\n}\n"
        )


def library(unit: Unit) -> Path:
    """The compiled library, from the cache if it is there.

    Raises CannotPrepare with the first error where it does not compile.
    """
    folders = [HERE, *include_folders()]
    key = hashlib.sha256(repr((unit.text, unit.flags, compiler_version())).encode())
    for file in (unit.source, HERE / "emulator.hpp"):
        for text in read_with_headers(file, folders):
            key.update(hashlib.sha256(text).digest())
    built = cache_folder("emulator") / f"{unit.source.stem}-{key.hexdigest()[:24]}.so"
    if built.exists():
        return built
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
        made = Path(scratch) / "unit.so"
        include = [f"-I{folder}" for folder in (unit.source.parent, *folders)]
        (Path(scratch) / "unit.cpp").write_text(unit.text)
        command = [COMPILER, *unit.flags, *include, "unit.cpp", "-o", str(made)]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotPrepare(f"{unit.source.name} for the emulator: {first_error(done.stderr)}")
        made.replace(built)
    return built


def defines_of(defines: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((defines or {}).items()))
