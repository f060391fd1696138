"""PyTorch, run eagerly: an operation as people write it, stated in a few lines.

    prepare = Eager(F.silu)                                   # forward; backward by autograd
    prepare = Eager(torch.add, into=lambda y, a, b: torch.add(a, b, out=y))
    prepare = PerOperation({"copy": Eager(torch.clone, into=…), "scale": …})

Functions take the tensors a direction reads, in order, and return those it writes, in order.
A keyword-only parameter named like an extent (`*, kernel`) is given that extent, and `*, dtype` the
dtype of the case.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..operation import Directions, Tensor
from ..spec import Bind, CannotPrepare, Launch, Prepared, Spec, Tensors

if TYPE_CHECKING:
    import torch

Function = Callable[..., Any]


def unavailable() -> str | None:
    return None if find_spec("torch") else "torch is not installed (extras cpu, cuda13, cuda12)"


@dataclass(frozen=True)
class Eager:
    """The functions of one operation; callable as the `prepare` of its module.

    forward: allocates and returns what forward writes. None where only `into` makes sense.
    into: the same with public `out=` or in-place calls, `into(*writes, *reads)`; preferred in
        eager mode, since nothing is then allocated inside the clock.
    graph: what autograd differentiates where that is not `forward`: it takes tensors that backward
        reads, by parameter name, those with a gradient first and in the order of backward's writes;
        it returns one output per incoming gradient, in the order backward reads these.
    unread: of what is differentiated, that which no gradient depends on and backward does not read.
    backward: a function of its own instead of autograd's, of what backward reads.
    saved: makes, of what backward reads, the arguments of `backward`: torch's own form of what its
        forward leaves. Runs when buffers are bound, outside the clock.
    given: the same of what forward reads: what torch would make by itself, but not to be compared.
    refuses: the reason why torch cannot compute (direction, spec) rightly, or None.
    """

    forward: Function | None = None
    into: Function | None = None
    graph: Function | None = None
    unread: Sequence[str] = ()
    backward: Function | None = None
    saved: Function | None = None
    given: Function | None = None
    refuses: Callable[[str, Spec], str | None] | None = None

    def of(self, operation: str) -> Eager:
        """The functions of the operation with this name."""
        return self

    def settled(self, spec: Spec) -> Eager:
        """The same functions with their keyword-only parameters filled from the extents."""
        known: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        known |= {name: _settled(f, spec) for name, f in known.items() if callable(f)}
        return Eager(**known)

    def __call__(self, direction: str, spec: Spec) -> Prepared:
        """Raises CannotPrepare where it refuses, or has no function for this direction."""
        reason = self.refuses and self.refuses(direction, spec)
        if reason:
            raise CannotPrepare(reason)
        in_place = direction == "forward" and self.into is not None
        return Prepared(bind=bind(self.settled(spec), direction, spec), allocates=not in_place)


@dataclass(frozen=True)
class PerOperation:
    """Several operations that share a file, by name."""

    functions: Mapping[str, Eager]

    def of(self, operation: str) -> Eager:
        """Raises CannotPrepare where this file has nothing for it."""
        if operation not in self.functions:
            raise CannotPrepare(f"no torch function for {operation}")
        return self.functions[operation]

    def __call__(self, direction: str, spec: Spec) -> Prepared:
        return self.of(spec.operation.name)(direction, spec)


def bind(functions: Eager, direction: str, spec: Spec) -> Bind:
    """How `functions`, settled, run one direction on tensors that come later.

    Raises CannotPrepare where they do not contain it.
    """
    reads = _names(spec.io.reads)
    if direction == "backward" and functions.backward is None:
        return _autograd(functions, spec)
    if direction == "backward":
        return _calling(functions.backward, reads, functions.saved)
    if functions.into is not None:
        writes = _names(spec.io.writes)
        beside = functions.given and _behind(functions.given, len(writes))
        return _calling(functions.into, [*writes, *reads], beside, returns=False)
    return _calling(functions.forward, reads, functions.given)


def _behind(function: Function, outputs: int) -> Function:
    """`function` of what stands behind the outputs."""
    return lambda *tensors: (*tensors[:outputs], *function(*tensors[outputs:]))


@contextmanager
def on(stream: Any) -> Iterator[None]:
    """Run on `stream`, after what the current stream has enqueued so far."""
    if stream is None:
        yield
        return
    import torch

    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        yield


def _calling(
    function: Function | None,
    names: Sequence[str],
    saved: Function | None = None,
    *,
    returns: bool = True,
) -> Bind:
    """Call `function` with the tensors of these names, or with what `saved` makes of them."""
    if function is None:
        raise CannotPrepare("torch has no function for this direction")

    def bind_call(tensors: Tensors, stream: Any) -> Launch:
        bound = [tensors[name] for name in names]
        with on(stream):
            arguments = saved(*bound) if saved else bound

        def run(**fresh: torch.Tensor) -> list[torch.Tensor] | None:
            now = _replaced(names, arguments, fresh) if fresh else arguments
            result = function(*now)
            return _listed(result) if returns else None

        return _enqueue(run, stream)

    return bind_call


def _autograd(functions: Eager, spec: Spec) -> Bind:
    """Backward by autograd, of a graph built when the buffers are bound.

    The graph is kept from run to run, and nothing is accumulated into `.grad`.
    """
    import torch

    directions = spec.operation.directions(spec.dims, spec.dtype)
    function, leaves, differentiated, incoming = _graph(functions, directions, spec)
    reads = {tensor.name: tensor for tensor in directions.forward.reads}

    def bind_graph(tensors: Tensors, stream: Any) -> Launch:
        # `.data` leaves the version counter behind, which tensors carved from one block of memory
        # share: any write to the block would count as one to what the graph has saved.
        device = next(iter(tensors.values())).device
        own = {
            name: torch.zeros(reads[name].shape, dtype=reads[name].dtype.torch_dtype, device=device)
            if name in functions.unread
            else tensors[name].data
            for name in leaves
        }
        inputs = [own[name].requires_grad_() for name in differentiated]
        with on(stream), torch.enable_grad():
            outputs = _listed(function(*own.values()))
        gradients = [tensors[name] for name in incoming]

        def run(**fresh: torch.Tensor) -> list[torch.Tensor]:
            now = _replaced(incoming, gradients, fresh) if fresh else gradients
            return list(torch.autograd.grad(outputs, inputs, now, retain_graph=True))

        return _enqueue(run, stream)

    return bind_graph


def _graph(
    functions: Eager, directions: Directions, spec: Spec
) -> tuple[Function, list[str], list[str], list[str]]:
    """(function, names of its arguments, those with a gradient, the incoming gradients)."""
    read, writes = _names(spec.io.reads), _names(spec.io.writes)
    incoming = [f"d{name}" for name in _names(directions.forward.writes) if f"d{name}" in read]
    if functions.graph is not None:
        function = functions.graph
        leaves = list(_positional(function))
        incoming.sort(key=read.index)
        differentiated = leaves[: len(writes)]
    elif functions.forward is not None:
        function = functions.forward
        leaves = _names(directions.forward.reads)
        differentiated = [name.removeprefix("d") for name in writes]
    else:
        raise CannotPrepare(f"no torch function for the backward of {spec.operation.name}")
    missing = [name for name in leaves if name not in (*read, *functions.unread)]
    if missing or not set(differentiated) <= set(leaves) or not incoming:
        raise CannotPrepare(
            f"{spec.operation.name}: autograd needs {', '.join(leaves)} and the gradients of its "
            f"outputs; backward reads {', '.join(read)} and writes {', '.join(writes)}"
        )
    return function, leaves, differentiated, incoming


def _enqueue(run: Launch, stream: Any) -> Launch:
    """`run` on `stream`, switching to it only where it is not the current one."""
    if stream is None:
        return run
    import torch

    def launch(**fresh: torch.Tensor) -> Sequence[torch.Tensor] | None:
        if torch.cuda.current_stream(stream.device) == stream:
            return run(**fresh)
        with torch.cuda.stream(stream):
            return run(**fresh)

    return launch


def _settled(function: Function, spec: Spec) -> Function:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin, which has none of ours
        return function
    known: dict[str, Any] = {name: int(length) for name, length in spec.dims.items()}
    known["dtype"] = spec.dtype.torch_dtype
    given = {p.name: known[p.name] for p in parameters if _names_one(p, known)}
    return partial(function, **given) if given else function


def _names_one(parameter: inspect.Parameter, known: Mapping[str, Any]) -> bool:
    return parameter.kind is parameter.KEYWORD_ONLY and parameter.name in known


def _positional(function: Function) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def _replaced(
    names: Sequence[str], values: Sequence[torch.Tensor], fresh: Tensors
) -> list[torch.Tensor]:
    """`values` with those replaced that a chain hands over anew at every run."""
    if not fresh.keys() <= set(names):
        raise CannotPrepare(f"bound outside the clock: {', '.join(fresh.keys() - set(names))}")
    return [fresh.get(name, value) for name, value in zip(names, values, strict=True)]


def _names(operands: Sequence[Tensor]) -> list[str]:
    return [operand.name for operand in operands]


def _listed(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple | list) else [result]
