"""Finding operations and their implementations by walking folders.

A folder of operations holds `<stem>.py` (states one or more operations) and, beside it,
`<stem>_<backend>.py` for each way to compute them. A file that is there is an implementation that
exists; nothing is registered anywhere.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from . import chain
from .operation import Operation
from .spec import CannotPrepare, Prepared, Spec

BACKENDS = ("cuda", "cupy", "numba", "triton", "torch", "compile", "cpu")
"""In the order they are listed and measured. `compile` is derived from `torch`'s file."""

_HERE = Path(__file__).resolve().parent
_NOT_FAMILIES = {"backends", "include", "__pycache__"}


class BrokenKernels(Exception):
    """A folder of operations that cannot be used; the message says which file and why."""


@dataclass(frozen=True)
class Implementation:
    """One way to compute an operation: a backend and a named variant ("" is the default one)."""

    operation: Operation
    backend: str
    variant: str
    path: Path
    _folder: _Folder
    _catalogue: Catalogue

    @property
    def label(self) -> str:
        """`cuda`, or `cuda:unfused`."""
        return f"{self.backend}:{self.variant}" if self.variant else self.backend

    def refuses(self, direction: str, dtype: str) -> str | None:
        """Why it cannot run this direction and dtype here, in one line; None where it can."""
        if not self.operation.has(direction):
            return f"{self.operation.name} has no {direction}"
        reason = backend_unavailable(self.backend)
        if reason:
            return reason
        if self.variant in self.operation.chains:
            return chain.refuses(self._catalogue, self, direction, dtype)
        try:
            module = self._folder.load(self.path)
        except BrokenKernels as error:
            return str(error)
        refuses = getattr(module, "refuses", None)
        return refuses(direction, dtype) if refuses else None

    def prepare(self, spec: Spec) -> Prepared:
        """Compile and choose. Raises CannotPrepare with a one-line reason where it cannot."""
        if self.variant in self.operation.chains:
            return chain.prepare(self._catalogue, self, spec)
        module = self._folder.load(self.path)
        prepare = module.prepare
        if self.backend == "compile":
            prepare = importlib.import_module(f"{__package__}.backends.compile").derive(prepare)
        prepared = prepare(spec.direction, spec)
        if not isinstance(prepared, Prepared):
            raise CannotPrepare(f"{self.path}: prepare returned {type(prepared).__name__}")
        return prepared

    def source_hash(self) -> str:
        """12 hex digits over every file that decides what this implementation does."""
        files = sorted(self.path.parent.glob(f"{self.operation.stem}*"))
        files = [f for f in files if f.suffix in {".py", ".cu", ".cuh"}]
        own = [f for f in files if _is_part_of(f, self.operation.stem, self.backend)]
        shared = [_HERE / "backends" / f"{self.backend}.py"]
        if self.backend in {"cuda", "cupy"}:
            shared += sorted((_HERE / "include").glob("*.cuh"))
        digest = hashlib.sha256()
        for file in (*own, *(f for f in shared if f.exists())):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        for step in self._chain_steps():
            digest.update(step.source_hash().encode())
        return digest.hexdigest()[:12]

    def _chain_steps(self) -> list[Implementation]:
        if self.variant not in self.operation.chains:
            return []
        return chain.step_implementations(self._catalogue, self)


@dataclass(frozen=True)
class _Folder:
    """One folder of operations, and the package its modules are imported as."""

    path: Path
    package: str

    def operation_files(self) -> list[Path]:
        return [
            file
            for file in sorted(self.path.glob("*.py"))
            if not file.stem.startswith(("_", "test_", "conftest")) and not _backend_of(file)
        ]

    def load(self, file: Path) -> ModuleType:
        """Import one of its files. Raises BrokenKernels naming the file and the error."""
        try:
            return importlib.import_module(f"{self.package}.{file.stem}")
        except Exception as error:  # whatever a user's file raises is that file's fault
            raise BrokenKernels(f"{file}: {type(error).__name__}: {_one_line(error)}") from error


class Catalogue:
    """Every operation that was found, by name, and what implements it."""

    def __init__(self, folders: Sequence[_Folder]) -> None:
        self.operations: dict[str, Operation] = {}
        self._folders: dict[str, _Folder] = {}
        for folder in folders:
            for file in folder.operation_files():
                self._collect(folder, file)

    def _collect(self, folder: _Folder, file: Path) -> None:
        module = folder.load(file)
        for value in vars(module).values():
            if not isinstance(value, Operation) or value.source != file.resolve():
                continue
            if value.name in self.operations:
                other = self.operations[value.name].source
                raise BrokenKernels(f"{file}: operation {value.name!r} is already in {other}")
            self.operations[value.name] = value
            self._folders[value.name] = folder

    def implementations(self, operation: Operation) -> list[Implementation]:
        """Every implementation of `operation`, default form before named variants, then chains."""
        folder = self._folders[operation.name]
        found: list[Implementation] = []
        for backend in BACKENDS:
            stem = "torch" if backend == "compile" else backend
            path = folder.path / f"{operation.stem}_{stem}.py"
            variants = [""] if path.exists() else []
            if path.exists() and not backend_unavailable(backend):
                variants += self._named_variants(folder, path, operation, backend)
            for variant in variants:
                found.append(Implementation(operation, backend, variant, path, folder, self))
            for variant in operation.chains:
                unfused = Implementation(operation, backend, variant, path, folder, self)
                if chain.exists(self, unfused):
                    found.append(unfused)
        return found

    def _named_variants(
        self, folder: _Folder, path: Path, operation: Operation, backend: str
    ) -> list[str]:
        try:
            module = folder.load(path)
        except BrokenKernels:
            return []  # the default form carries the reason
        declared = getattr(module, "COMPILE_VARIANTS" if backend == "compile" else "VARIANTS", ())
        if isinstance(declared, Mapping):  # where a file implements several operations
            declared = declared.get(operation.name, ())
        return list(declared)


def discover(extra: Iterable[Path] = ()) -> Catalogue:
    """Our operations and those of the folders in `extra` (`--kernels PATH`).

    An extra folder may hold operation files itself, or families in folders of their own.
    Raises BrokenKernels where a folder is missing or empty, or a file in it cannot be used.
    """
    folders = [_Folder(path, f"{__package__}.{path.name}") for path in _families(_HERE)]
    for path in extra:
        folders += _external(path.resolve())
    return Catalogue(folders)


def backend_unavailable(backend: str) -> str | None:
    """Why nothing of this backend can run here (a package that is not installed), or None."""
    module = importlib.import_module(f"{__package__}.backends.{backend}")
    reason: str | None = module.unavailable()
    return reason


def _families(root: Path) -> list[Path]:
    return [
        path
        for path in sorted(root.iterdir())
        if path.is_dir() and path.name not in _NOT_FAMILIES and any(path.glob("[!_]*.py"))
    ]


def _external(root: Path) -> list[_Folder]:
    if not root.is_dir():
        raise BrokenKernels(f"{root}: no such folder of operations")
    paths = ([root] if any(root.glob("[!_]*.py")) else []) + _families(root)
    folders = [_Folder(path, _package_for(path)) for path in paths]
    folders = [folder for folder in folders if folder.operation_files()]
    if not folders:
        raise BrokenKernels(f"{root}: no operation file (<name>.py) in it or in its folders")
    return folders


def _package_for(path: Path) -> str:
    """A package whose modules are the files of `path`, so that they can import one another."""
    name = f"membound_kernels_{hashlib.sha256(str(path).encode()).hexdigest()[:10]}"
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package
    return name


def _backend_of(file: Path) -> str | None:
    _, _, suffix = file.stem.rpartition("_")
    return suffix if suffix in BACKENDS and suffix != file.stem else None


def _is_part_of(file: Path, stem: str, backend: str) -> bool:
    source = "torch" if backend == "compile" else backend
    if file.suffix in {".cu", ".cuh"}:
        return backend in {"cuda", "cupy"}
    return file.stem in {stem, f"{stem}_{source}"}


def _one_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
