"""One side of an A/B comparison: a revision's code, its worker, and what the two say."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from .ab_protocol import PROTOCOL, Answer, Hello, Known, Listed, Request, Setup
from .device.select import Selected
from .environment import ROOT
from .presets import Selection
from .process import CASE_TIMEOUT_SECONDS, Loss, Worker, worker_environ
from .protocol import Choice, Poisoned, Setting
from .timer_choice import usual_timer

TIME_LIMIT_SECONDS = 600.0


class NoCommonProtocol(Exception):
    """A revision whose worker cannot be spoken to; the message says which and why."""

    exit_code = 3


@dataclass(frozen=True)
class Comparing:
    """What the user asked for. `rounds` of four blocks of `block_seconds` make a restart."""

    revision: str
    selection: Selection = field(default_factory=Selection)
    device: str | None = None
    seed: int = 0
    kernels: tuple[Path, ...] = ()
    time_limit: float = TIME_LIMIT_SECONDS
    block_seconds: float = 0.02
    rounds: int = 12
    case_timeout: float = CASE_TIMEOUT_SECONDS
    root: Path = ROOT


class Lost(Exception):
    """A worker that ended or hung before it answered."""

    def __init__(self, side: Side, loss: Loss) -> None:
        super().__init__(loss.text)
        self.side, self.loss = side, loss


@dataclass
class Side:
    """One revision: where its code is, what it chose, and its worker."""

    name: str
    tree: Path
    environ: Mapping[str, str]
    setting: Setting
    lost_as: str  # verdict of a case that this side alone has not
    choices: dict[str, Choice] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    _worker: Worker[Answer] | None = None
    _answers: Iterator[Answer | Loss] = field(default_factory=lambda: iter(()))

    def start(self, selection: Selection, timeout: float) -> list[Known]:
        """A fresh worker's cases. Raises NoCommonProtocol."""
        command = [sys.executable, "-P", "-m", "membound.bench.ab_worker"]
        decoder = msgspec.json.Decoder[Answer](Answer)
        self._worker = Worker(command, self.environ, decoder)
        self._answers = self._worker.events(timeout)
        try:
            hello = self._next()
            if not isinstance(hello, Hello) or hello.protocol != PROTOCOL:
                spoken = hello.protocol if isinstance(hello, Hello) else type(hello).__name__
                raise NoCommonProtocol(f"{self.name} speaks protocol {spoken}, not {PROTOCOL}")
            if Path(hello.root) != self.tree:
                raise NoCommonProtocol(f"{self.name} was to run {self.tree}, not {hello.root}")
            listed = self.ask(Setup(self.setting, selection))
        except Lost as error:
            raise NoCommonProtocol(f"{self.name} has no worker that starts: {error}") from None
        except msgspec.DecodeError as error:
            raise NoCommonProtocol(f"{self.name} speaks another protocol: {error}") from None
        assert isinstance(listed, Listed)
        return listed.cases

    def ask(self, request: Request | Setup) -> Answer:
        """Raises Lost where the worker does not live to answer."""
        assert self._worker is not None
        self._worker.send(msgspec.json.encode(request) + b"\n", last=False)
        return self._next()

    def end(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _next(self) -> Answer:
        answer = next(self._answers, Loss("failed", "worker ended without an answer"))
        if isinstance(answer, Poisoned):
            answer = Loss("failed", answer.reason)
        if isinstance(answer, Loss):
            raise Lost(self, answer)
        return answer


def side_of(
    request: Comparing, selected: Selected, tree: Path, links: Path, name: str, lost_as: str
) -> Side:
    """A side whose workers run the code of `tree`. links: a folder that is made for it."""
    target = selected.target
    setting = Setting(
        kind=target.kind,
        ordinal=target.ordinal,
        target=asdict(target),
        default_mhz=selected.device.sm_clock_mhz,
        budget_bytes=selected.memory_budget_bytes // 2,  # both sides are there at once
        seed=request.seed,
        timer=usual_timer(selected),
        kernels=[str(path) for path in _kernels(request, tree)],
    )
    cores = target.multiprocessors if target.kind == "cpu" else None
    environ = worker_environ(cores)
    links.mkdir()
    (links / "membound").symlink_to(tree)  # the package is the tree, whatever its folder is called
    paths = [str(links), *filter(None, [environ.get("PYTHONPATH")])]
    environ["PYTHONPATH"] = os.pathsep.join(paths)
    return Side(name, tree.resolve(), environ, setting, lost_as)


def _kernels(request: Comparing, tree: Path) -> Iterator[Path]:
    """Folders of operations: those that are part of the checkout are each revision's own."""
    root = request.root.resolve()
    for path in request.kernels:
        whole = path.resolve()
        mapped = tree / whole.relative_to(root) if whole.is_relative_to(root) else whole
        if mapped.exists():
            yield mapped
