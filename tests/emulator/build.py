"""Compiles a `.cu` with g++ into a library whose kernels are fibres; cached by content."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from membound.kernels.backends.cuda_nvrtc import (
    cache_folder,
    first_error,
    include_folders,
    read_with_headers,
    replace_file,
)
from membound.kernels.spec import CannotPrepare

from .build_tools import COMPILER, compiler_version

HERE = Path(__file__).resolve().parent
HEADER = HERE / "emulator.hpp"
FLAGS = (
    *("-std=c++17", "-Og", "-shared", "-fPIC", "-fno-strict-aliasing", "-fvisibility=hidden"),
    *("-DMEMBOUND_EMULATOR", "-Wno-unknown-pragmas", "-w"),
)
SANITIZE = (
    "-fsanitize=address,alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero",
    *("-fno-sanitize-recover=all", "-DEMULATOR_UNCHECKED"),
)
"""Those of the undefined behaviours that a kernel could have; all of them take twice as long to
compile. The sanitizers judge every access; the emulator's own bounds would only be there first."""


def flags(sanitize: bool) -> list[str]:
    return [*FLAGS, *(SANITIZE if sanitize else ())]


@dataclass(frozen=True)
class Unit:
    """What one library is made of."""

    source: Path
    names: tuple[str, ...]
    defines: tuple[tuple[str, str], ...] = ()
    sanitize: bool = False

    @property
    def flags(self) -> list[str]:
        return flags(self.sanitize) + [f"-D{name}={value}" for name, value in self.defines]

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


@dataclass(frozen=True)
class Library:
    """A compiled library. names: its kernels, in the order of its table."""

    path: Path
    names: tuple[str, ...]


def library(unit: Unit) -> Library:
    """What holds the kernels of the unit: from the cache, where any does, else compiled now.

    Raises CannotPrepare with the first error where it does not compile.
    """
    key = hashlib.sha256(repr((unit.source, unit.flags)).encode() + _contents(unit.source, HEADER))
    folder, about = cache_folder("emulator"), f"{unit.source.stem}-{key.hexdigest()[:24]}"
    for listed in sorted(folder.glob(f"{about}-*.json")):
        path, names = listed.with_suffix(".so"), tuple(json.loads(listed.read_text()))
        if set(unit.names) <= set(names) and path.exists():
            return Library(path, names)
    which = hashlib.sha256(repr(unit.names).encode()).hexdigest()[:8]
    built = folder / f"{about}-{which}.so"
    parsed = precompiled(unit.sanitize)
    _compile(unit.text, unit.flags, [parsed.parent, unit.source.parent], built)
    replace_file(built.with_suffix(".json"), json.dumps(unit.names).encode())
    return Library(built, unit.names)


def precompiled(sanitize: bool) -> Path:
    """The emulator's header, parsed once for all units.

    Where a compiler cannot use it, it finds the header itself in the next folder.
    """
    text = f'#include "{HEADER}"\n'
    key = hashlib.sha256(repr(flags(sanitize)).encode() + _contents(HEADER))
    folder = cache_folder("emulator") / f"header-{key.hexdigest()[:24]}"
    built = folder / f"{HEADER.name}.gch"
    if not built.exists():
        _compile(text, [*flags(sanitize), "-x", "c++-header"], [], built)
    return built


def _contents(*files: Path) -> bytes:
    """Digest of all that `files` include, and of the compiler."""
    digest = hashlib.sha256(compiler_version().encode())
    for file in files:
        for text in read_with_headers(file, [HERE, *include_folders()]):
            digest.update(hashlib.sha256(text).digest())
    return digest.digest()


def _compile(text: str, options: Sequence[str], folders: Sequence[Path], built: Path) -> None:
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
        made = Path(scratch) / "made"
        include = [f"-I{folder}" for folder in (*folders, HERE, *include_folders())]
        (Path(scratch) / "unit.cpp").write_text(text)
        command = [COMPILER, *options, *include, "unit.cpp", "-o", str(made)]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotPrepare(f"{built.name} for the emulator: {first_error(done.stderr)}")
        made.replace(built)


def defines_of(defines: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((defines or {}).items()))
