"""Kernels of other projects, called as their documentation says and judged like our own.

Their functions are stated as those of eager PyTorch are (`backends/torch.py`), backward by autograd
without accumulation where they have no function for it. A library that writes over its inputs says
so here: whoever runs it restores them outside the clock.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..spec import CannotPrepare, Launch, Prepared, Spec, Tensors
from .torch import Eager


@dataclass(frozen=True)
class Library:
    """A package and the oldest version whose interface is the one called here."""

    module: str
    package: str
    oldest: tuple[int, ...]

    def unavailable(self) -> str | None:
        if importlib.util.find_spec(self.module) is None:
            return f"{self.package} is not installed (extra peers)"
        try:
            version = importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:  # a source tree on the path
            return None
        if _release(version) < self.oldest:
            return f"{self.package} {version} is older than {'.'.join(map(str, self.oldest))}"
        return None


@dataclass(frozen=True)
class Call:
    """How a library computes one operation.

    in_place: output of either direction -> the input over which it is written.
    spoils, waits: as in `Prepared`.
    longest: columns of the longest row it takes, None where there is no limit.
    """

    functions: Eager
    in_place: Mapping[str, str] = field(default_factory=dict)
    spoils: Sequence[str] = ()
    waits: bool = False
    longest: int | None = None

    def __call__(self, direction: str, spec: Spec) -> Prepared:
        """Raises CannotPrepare where the library refuses this shape."""
        columns = spec.dims.get("columns", 0)
        if self.longest is not None and columns > self.longest:
            raise CannotPrepare(f"takes rows of at most {self.longest} elements, not {columns}")
        prepared = self.functions(direction, spec)
        writes = [tensor.name for tensor in spec.io.writes]
        in_place = {name: self.in_place[name] for name in writes if name in self.in_place}
        made = replace(prepared, in_place=in_place, spoils=self.spoils, waits=self.waits)
        if len(in_place) < len(writes):
            return made
        return replace(made, bind=_nothing_returned(prepared), allocates=False)


@dataclass(frozen=True)
class Peer:
    """The `prepare` of a file: its operations by name.

    arch: the oldest architecture that the library's documentation names, 90 for sm_90.
    """

    calls: Mapping[str, Call]
    arch: int = 0

    def __call__(self, direction: str, spec: Spec) -> Prepared:
        """Raises CannotPrepare where the library cannot run this."""
        if spec.target.kind == "cuda" and spec.target.sm < self.arch:
            raise CannotPrepare(f"needs sm_{self.arch} or later; this is {spec.target.arch}")
        return self.calls[spec.operation.name](direction, spec)


def lacking(names: Iterable[str], library: str) -> dict[str, str]:
    """`LACKS` of operations that the library has nothing for."""
    return {name: f"{library} has no {name}" for name in names}


def _nothing_returned(prepared: Prepared) -> Any:
    """Its bind, where every output is in an input's place: nothing is handed over."""

    def bind(tensors: Tensors, stream: Any) -> Launch:
        run = prepared.bind(tensors, stream)

        def launch() -> None:
            run()

        return launch

    return bind


def _release(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isdigit())
