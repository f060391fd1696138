"""Right, wrong and fatal ways to compute `shift`, as variants."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import numba
import torch
from membound.bench.timers import WallTiming
from membound.kernels.spec import CannotPrepare, Launch, Prepared, Spec

Run = Callable[[torch.Tensor, torch.Tensor], None]


def right(x: torch.Tensor, y: torch.Tensor) -> None:
    torch.add(x, 1.0, out=y)


def unwritten_tail(x: torch.Tensor, y: torch.Tensor) -> None:
    torch.add(x[:-1], 1.0, out=y[:-1])


def stale_output(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(torch.where(y == 0, x + 1, torch.zeros_like(x)))


def swapped_rows(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x.flip(0) + 1)


def modified_input(x: torch.Tensor, y: torch.Tensor) -> None:
    torch.add(x, 1.0, out=y)
    x[0, 0] += 1


def in_place(x: torch.Tensor, y: torch.Tensor) -> None:
    x += 1


def wrote_nan(x: torch.Tensor, y: torch.Tensor) -> None:
    torch.add(x, 1.0, out=y)
    y[3, 5] = float("nan")


def segfault(x: torch.Tensor, y: torch.Tensor) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def abort(x: torch.Tensor, y: torch.Tensor) -> None:
    os.abort()


def killed(x: torch.Tensor, y: torch.Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(x: torch.Tensor, y: torch.Tensor) -> None:
    time.sleep(3600)


def out_of_memory(x: torch.Tensor, y: torch.Tensor) -> None:
    torch.empty(1 << 50)


def raises(x: torch.Tensor, y: torch.Tensor) -> None:
    raise RuntimeError("first line of the trouble\nsecond line")


def sticky(x: torch.Tensor, y: torch.Tensor) -> None:
    """An error that stays with its process, as CUDA's do: nothing can be waited for any more."""

    def lost(_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    WallTiming.synchronize = lost  # type: ignore[assignment,method-assign]
    lost(None)


def source_with_a_mistake() -> Run:
    """What a compiler refuses, by a real compiler."""
    numba.njit("float64(float64)")(lambda x: x.missing)
    return right


class WrongLater:
    """Right while it is verified, wrong from the tenth run on."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.runs += 1
        torch.add(x, 1.0 if self.runs < 10 else 2.0, out=y)


RUNS: Mapping[str, Callable[[], Run]] = {
    "": lambda: right,
    "unwritten_tail": lambda: unwritten_tail,
    "stale_output": lambda: stale_output,
    "swapped_rows": lambda: swapped_rows,
    "modified_input": lambda: modified_input,
    "in_place": lambda: in_place,
    "not_in_place": lambda: right,
    "undeclared": lambda: in_place,
    "wrote_nan": lambda: wrote_nan,
    "wrong_later": WrongLater,
    "segfault": lambda: segfault,
    "abort": lambda: abort,
    "killed": lambda: killed,
    "hang": lambda: hang,
    "out_of_memory": lambda: out_of_memory,
    "raises": lambda: raises,
    "sticky": lambda: sticky,
    "does_not_compile": source_with_a_mistake,
    "refuses": lambda: right,
    "last": lambda: right,
}
VARIANTS = tuple(name for name in RUNS if name)
IN_PLACE = ("in_place", "not_in_place")


def prepare(direction: str, spec: Spec) -> Prepared:
    if spec.variant == "refuses":
        raise CannotPrepare("needs a device that nobody has")
    run = RUNS[spec.variant]()

    def bind(tensors: Mapping[str, torch.Tensor], stream: Any) -> Launch:
        def launch() -> None:
            run(tensors["x"], tensors["y"])

        return launch

    return Prepared(bind, in_place={"y": "x"} if spec.variant in IN_PLACE else {})
