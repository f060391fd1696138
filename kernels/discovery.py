"""Finding operations and their implementations by walking folders.

A folder of operations holds `<stem>.py` (states one or more operations) and, beside it,
`<stem>_<backend>.py` for each way to compute them. A file that is there is an implementation that
exists; nothing is registered anywhere, but for the entry point by which an installed package says
that it holds such folders.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from . import chain
from .imported import with_imports
from .ladder import Ladder
from .operation import Operation
from .spec import CannotPrepare, Prepared, Spec

PEERS = ("liger", "quack", "flashinfer")
"""Kernels of other projects, which are there where somebody installed them."""

BACKENDS = ("cuda", "cupy", "numba", "triton", "torch", "compile", *PEERS, "cpu")
"""In the order they are listed and measured. `compile` is derived from `torch`'s file."""

ENTRY_POINTS = "membound.operations"
"""Group of entry points by which an installed package adds its operations."""

_HERE = Path(__file__).resolve().parent
_NOT_FAMILIES = {"audit", "backends", "include", "__pycache__"}


class BrokenKernels(Exception):
    """A folder of operations that cannot be used; the message says which file and why."""

    exit_code = 2


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

    @cached_property
    def ladder(self) -> Ladder | None:
        """The kernel ladder of its operation that its file states, if any."""
        if self.backend == "compile" or self._catalogue.unavailable(self.backend):
            return None
        try:
            ladders: Mapping[str, Ladder] = getattr(self.module(), "LADDERS", {})
        except BrokenKernels:
            return None
        return ladders.get(self.operation.name)

    @property
    def is_step(self) -> bool:
        """Whether it is one of the steps of a ladder, of which the default form is the last."""
        return self.ladder is not None and self.variant in self.ladder.steps

    def has(self, direction: str) -> bool:
        """Whether there is such a direction of it: a step of a ladder is of one alone."""
        step = self.ladder if self.is_step else None
        return self.operation.has(direction) and (step is None or step.direction == direction)

    def refuses(self, direction: str, dtype: str) -> str | None:
        """Why it cannot run this direction and dtype here, in one line; None where it can."""
        if not self.operation.has(direction):
            return f"{self.operation.name} has no {direction}"
        if not self.has(direction):
            return f"{self.label} has no {direction}: it is a step of the other one's ladder"
        reason = self._catalogue.unavailable(self.backend)
        if reason:
            return reason
        if self.variant in self.operation.chains:
            return chain.refuses(self._catalogue, self, direction, dtype)
        try:
            module = self.module()
        except BrokenKernels as error:
            return str(error)
        reason = self._lacks(module)
        if reason:
            return reason
        refuses = getattr(module, f"refuses_{self.variant}", getattr(module, "refuses", None))
        reason = refuses(direction, dtype) if refuses else None
        if reason is None and self.backend == "compile":
            compiler = _backend("compile")
            reason = compiler.refuses(module.prepare, self.operation.name, self.variant, direction)
        return reason

    def prepare(self, spec: Spec) -> Prepared:
        """Compile and choose. Raises CannotPrepare with a one-line reason where it cannot."""
        if self.variant in self.operation.chains:
            return chain.prepare(self._catalogue, self, spec)
        try:
            module = self.module()
        except BrokenKernels as error:
            raise CannotPrepare(str(error)) from error
        reason = self._lacks(module)
        if reason:
            raise CannotPrepare(reason)
        prepare = module.prepare
        if self.backend == "compile":
            prepare = _backend("compile").derive(prepare)
        prepared = prepare(spec.direction, spec)
        if not isinstance(prepared, Prepared):
            raise CannotPrepare(f"{self.path}: prepare returned {type(prepared).__name__}")
        return prepared

    def source_hash(self) -> str:
        """12 hex digits over every file that decides what this implementation does.

        That is its operation's file, its own, its backend's, what these import (the core apart:
        `operation.py` and its neighbours) and the CUDA C++ of its stem; for a chain those of its
        steps.
        """
        python = [self.operation.source, _HERE / "backends" / f"{self.backend}.py"]
        if self.variant in self.operation.chains:
            python = [self.operation.source, Path(chain.__file__)]
        elif self.path.exists():
            python.append(self.path)
        files = with_imports(python)
        if self.backend in {"cuda", "cupy"} and self.variant not in self.operation.chains:
            users = [f for f in files if _backend_of(f) in {"cuda", "cupy"}]
            files = files.union(*map(_cuda_files, (self.path, *users)), _HERE.glob("include/*.cuh"))
        digests = sorted(f.name.encode() + b"\0" + _sha256(f.read_bytes()) for f in files)
        digests += [step.source_hash().encode() for step in self._chain_steps()]
        return hashlib.sha256(b"\0".join(digests)).hexdigest()[:12]

    def module(self) -> ModuleType:
        """Raises BrokenKernels where its file cannot be imported or has no `prepare`."""
        module = self._folder.load(self.path)
        if not callable(getattr(module, "prepare", None)):
            raise BrokenKernels(f"{self.path}: has no prepare(direction, spec)")
        return module

    def _lacks(self, module: ModuleType) -> str | None:
        """Why the file does not have this one of its operations, where it says so."""
        reason: str | None = getattr(module, "LACKS", {}).get(self.operation.name)
        return reason

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
        return _operation_files(self.path)

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
        self._unavailable: dict[str, str | None] = {}
        for folder in folders:
            for file in folder.operation_files():
                self._collect(folder, file)
        for operation in self.operations.values():
            for fault in chain.faults(self.operations, operation):
                raise BrokenKernels(f"{operation.source}: {fault}")

    def _collect(self, folder: _Folder, file: Path) -> None:
        module = folder.load(file)
        for value in {id(value): value for value in vars(module).values()}.values():
            if not isinstance(value, Operation) or value.source != file.resolve():
                continue
            if value.name in self.operations:
                other = self.operations[value.name].source
                raise BrokenKernels(f"{file}: operation {value.name!r} is already in {other}")
            _check_shapes(value, file)
            self.operations[value.name] = value
            self._folders[value.name] = folder

    def implementations(
        self, operation: Operation, backends: Iterable[str] = BACKENDS
    ) -> list[Implementation]:
        """Every implementation of `operation`, default form before named variants, then chains.

        Imports the files of `backends`, which may name variants, and of no other.
        """
        found: list[Implementation] = []
        for backend in backends:
            default = self._implementation(operation, backend, "")
            if default.path.exists():
                found.append(default)
                found += (replace(default, variant=name) for name in self._named_variants(default))
            unfused = (replace(default, variant=name) for name in operation.chains)
            found += (form for form in unfused if chain.exists(self, form))
        return found

    def default(self, operation: str, backend: str) -> Implementation | None:
        """The default form of the operation of this name in `backend`, if there is one."""
        if operation not in self.operations:
            return None
        default = self._implementation(self.operations[operation], backend, "")
        return default if default.path.exists() else None

    def unavailable(self, backend: str) -> str | None:
        """What `backend_unavailable` says, asked once: packages do not come and go meanwhile."""
        if backend not in self._unavailable:
            self._unavailable[backend] = backend_unavailable(backend)
        return self._unavailable[backend]

    def _named_variants(self, default: Implementation) -> list[str]:
        if self.unavailable(default.backend):
            return []
        try:
            module = default.module()
        except BrokenKernels:
            return []  # the default form carries the reason
        declared = getattr(
            _backend("compile") if default.backend == "compile" else module, "VARIANTS", ()
        )
        if isinstance(declared, Mapping):  # where a file implements several operations
            declared = declared.get(default.operation.name, ())
        return [*(default.ladder.steps if default.ladder else ()), *declared]

    def _implementation(self, operation: Operation, backend: str, variant: str) -> Implementation:
        folder = self._folders[operation.name]
        path = folder.path / f"{operation.stem}_{'torch' if backend == 'compile' else backend}.py"
        return Implementation(operation, backend, variant, path, folder, self)


def _check_shapes(operation: Operation, file: Path) -> None:
    where = f"{file}: operation {operation.name!r}"
    if not operation.shapes or not operation.dtypes:
        raise BrokenKernels(f"{where} names no shapes or no dtypes")
    for shape in operation.shapes:
        try:
            operation.directions(shape.dims, operation.dtypes[0])
        except Exception as error:  # whatever a user's statement raises is that statement's fault
            raise BrokenKernels(f"{where} at {shape.dims}: {_one_line(error)}") from error


def discover(extra: Iterable[Path] = ()) -> Catalogue:
    """Our operations, those of installed packages, and those of the folders in `extra`.

    An extra folder (`--kernels PATH`) may hold operation files itself, or families in folders of
    their own; so may a package that an entry point of the group `membound.operations` names.
    Raises BrokenKernels where a folder is missing or empty, or a file in it cannot be used.
    """
    folders = [_Folder(path, f"{__package__}.{path.name}") for path in _families(_HERE)]
    paths = [*_installed(), *(path.resolve() for path in extra)]
    for path in dict.fromkeys(paths):
        folders += _external(path)
    return Catalogue(folders)


def _installed() -> Iterator[Path]:
    """Folders of the packages that entry points of our group name; nothing is imported."""
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            found = importlib.util.find_spec(entry.module)
        except ImportError:
            found = None
        places = found.submodule_search_locations if found else None
        if not places:
            raise BrokenKernels(
                f"entry point {entry.name!r} of group {ENTRY_POINTS!r}: {entry.value!r} is no "
                "package of operations that can be found"
            )
        yield Path(next(iter(places))).resolve()


def backend_unavailable(backend: str) -> str | None:
    """Why nothing of this backend can run here (a package that is not installed), or None."""
    reason: str | None = _backend(backend).unavailable()
    return reason


def _backend(name: str) -> ModuleType:
    return importlib.import_module(f"{__package__}.backends.{name}")


def _families(root: Path) -> list[Path]:
    return [
        path
        for path in sorted(root.iterdir())
        if path.is_dir() and path.name not in _NOT_FAMILIES and any(path.glob("[!_]*.py"))
    ]


def _external(root: Path) -> list[_Folder]:
    if not root.is_dir():
        raise BrokenKernels(f"{root}: no such folder of operations")
    package = _package_for(root)
    folders = [_Folder(root, package)] if any(root.glob("[!_]*.py")) else []
    folders += [_Folder(path, f"{package}.{path.name}") for path in _families(root)]
    folders = [folder for folder in folders if folder.operation_files()]
    if not folders:
        raise BrokenKernels(f"{root}: no operation file (<name>.py) in it or in its folders")
    return folders


def _package_for(path: Path) -> str:
    """A package whose modules are the files of `path`, so that they can import one another: what
    `kernels` is to our families."""
    name = f"membound_kernels_{hashlib.sha256(str(path).encode()).hexdigest()[:10]}"
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package
    return name


def _operation_files(folder: Path) -> list[Path]:
    return [
        file
        for file in sorted(folder.glob("*.py"))
        if not file.stem.startswith(("_", "test_", "conftest")) and not _backend_of(file)
    ]


def _backend_of(file: Path) -> str | None:
    _, _, suffix = file.stem.rpartition("_")
    return suffix if suffix in BACKENDS and suffix != file.stem else None


def _cuda_files(file: Path) -> list[Path]:
    """CUDA C++ beside `<stem>_cuda.py`: `<stem>.cu` or `.cuh`, `<stem>_….cu`."""
    stems = [operation.stem for operation in _operation_files(file.parent)]

    def owner(name: str) -> str | None:
        owners = (s for s in stems if name == s or name.startswith(f"{s}_"))
        return max(owners, key=len, default=None)

    stem = file.stem.rpartition("_")[0]
    found = (*file.parent.glob("*.cu"), *file.parent.glob("*.cuh"))
    return [cuda for cuda in found if owner(cuda.stem) == stem]


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _one_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
