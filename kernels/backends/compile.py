"""torch.compile, of the functions that `<stem>_torch.py` states for eager PyTorch.

The default form compiles the function that allocates its outputs, as people do; `compile:out`
compiles `out.copy_(f(x))`, for outputs that are already there. Shapes are static and a graph break
is refused: a layer in pieces would answer another question.

Everything is compiled while preparing, by one run on tensors of the right shapes, so that no
launch compiles. That holds as long as torch's own settings (threads, grad mode, precision) are
those of the preparation.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ..spec import CannotPrepare, Prepared, Spec
from . import torch as eager
from .torch import Eager, Function, PerOperation

if TYPE_CHECKING:
    import torch

VARIANTS = ("out",)


def unavailable() -> str | None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"torch.compile needs a C++ compiler and finds no {compiler} (set CXX)"
    return eager.unavailable()


def refuses(prepare: Any, operation: str, variant: str, direction: str) -> str | None:
    """Why an operation's torch file has no such form to compile, in one line; None where it has."""
    if not isinstance(prepare, Eager | PerOperation):
        return "its torch file does not state functions to compile (Eager)"
    if variant and direction == "backward":
        return "autograd allocates what backward writes"
    try:
        functions = prepare.of(operation)
    except CannotPrepare as error:
        return str(error)
    return "it is written in place by default" if variant and not functions.forward else None


def derive(prepare: Any) -> Callable[[str, Spec], Prepared]:
    """The compiled form of what a torch file states as its `prepare`."""
    return partial(_prepare, prepare)


def _prepare(stated: Any, direction: str, spec: Spec) -> Prepared:
    """Raises CannotPrepare where torch.compile cannot make it."""
    reason = refuses(stated, spec.operation.name, spec.variant, direction)
    if reason:
        raise CannotPrepare(reason)
    import torch

    functions = stated.of(spec.operation.name).settled(spec)
    started = time.perf_counter()
    try:
        from torch._functorch import config

        # A kept graph is run again: backward must not overwrite what forward saved.
        with config.patch(donated_buffer=False):
            prepared = _form(functions, direction, spec)
            prepared.bind(_zeros(spec, prepared.allocates), None)()
    except CannotPrepare:
        raise
    except Exception as error:  # whatever the compiler raises is why this form does not exist
        raise CannotPrepare(f"torch.compile: {_reason(error)}") from error
    finally:
        if spec.target.kind == "cuda":  # whoever measures needs the memory of the trial run
            torch.cuda.empty_cache()
    return replace(prepared, compile_seconds=time.perf_counter() - started)


def _form(functions: Eager, direction: str, spec: Spec) -> Prepared:
    """The functions, with the one that runs inside the clock compiled."""
    forward = functions.forward
    if direction == "backward" and functions.backward:
        used = replace(functions, backward=_compiled(functions.backward))
    elif direction == "backward" and functions.graph:
        used = replace(functions, graph=_compiled(functions.graph))
    elif forward is None:
        used = replace(functions, into=functions.into and _compiled(functions.into))
    elif spec.variant == "out":
        used = replace(functions, into=_compiled(_copying(forward, len(spec.io.writes))))
    else:
        used = replace(functions, into=None, forward=_compiled(forward))
    in_place = direction == "forward" and used.into is not None
    return Prepared(bind=eager.bind(used, direction, spec), allocates=not in_place)


def _compiled(function: Function) -> Function:
    """`function` compiled under a code object of its own.

    torch.compile caches by code object and gives up after a few shapes of one; every case has its
    own, so none of them takes the place of another and nothing has to be reset in between.
    """
    import torch

    def call(*tensors: torch.Tensor) -> Any:
        return function(*tensors)

    own = FunctionType(call.__code__.replace(), call.__globals__, closure=call.__closure__)
    return wraps(function)(torch.compile(own, dynamic=False, fullgraph=True))


def _copying(function: Function, outputs: int) -> Function:
    """`function` with its results copied into the leading arguments."""
    import torch

    def copy(*tensors: torch.Tensor) -> None:
        result = function(*tensors[outputs:])
        results = [result] if isinstance(result, torch.Tensor) else result
        for into, value in zip(tensors[:outputs], results, strict=True):
            into.copy_(value)

    return copy


def _zeros(spec: Spec, allocates: bool) -> dict[str, torch.Tensor]:
    """Operands to compile with. Zero is a valid index and a valid class, whatever they mean."""
    import torch

    device = f"cuda:{spec.target.ordinal}" if spec.target.kind == "cuda" else "cpu"
    operands = spec.io.reads if allocates else spec.io.operands.values()
    return {
        operand.name: torch.zeros(
            tuple(map(int, operand.shape)), dtype=operand.dtype.torch_dtype, device=device
        )
        for operand in operands
    }


def _reason(error: Exception) -> str:
    cause = getattr(error, "inner_exception", error)
    return f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}"
