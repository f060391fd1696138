"""torch.compile: the eager functions, compiled while preparing and never again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import pytest
import torch
from membound.kernels.backends import compile as backend
from membound.kernels.backends.torch import Eager, PerOperation
from membound.kernels.discovery import Catalogue, Implementation
from membound.kernels.dtypes import bfloat16, float32
from membound.kernels.inputs import evaluate
from membound.kernels.operation import DirectionName, Operation
from membound.kernels.spec import CannotPrepare, Spec
from membound.kernels.tolerance import compare, compare_outputs

ROWS = {"rows": 4, "columns": 32}
Specs = Callable[..., Spec]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """torch.compile replaced by the function itself; the options of every call."""
    calls: list[dict[str, Any]] = []

    def stand_in(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        call = options | {"function": function, "runs": 0}
        calls.append(call)

        def run(*tensors: torch.Tensor) -> Any:
            call["runs"] += 1
            return function(*tensors)

        return run

    monkeypatch.setattr(torch, "compile", stand_in)
    return calls


def form(catalogue: Catalogue, name: str, variant: str = "") -> Implementation:
    forms = catalogue.implementations(catalogue.operations[name], ["compile"])
    return next(i for i in forms if i.variant == variant)


def smallest(operation: Operation) -> dict[str, int]:
    """Its smallest shape that is not empty."""
    there = [shape.dims for shape in operation.shapes if next(iter(shape.dims.values()))]
    return min(there, key=lambda dims: prod(max(length, 1) for length in dims.values()))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("variant", ["", "out", "unfused"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_form_agrees_with_the_reference(
    catalogue: Catalogue, variant: str, direction: DirectionName, bind: Any
) -> None:
    tried = []
    for operation in catalogue.operations.values():
        for one in catalogue.implementations(operation, ["compile"]):
            if one.variant != variant or one.refuses(direction, "float32"):
                continue
            dims = ROWS if "rows" in operation.dims else smallest(operation)
            case = bind(one, direction, dims, float32)
            exact = evaluate(case.spec.io, case.inputs)
            for _ in range(2):
                written = case.run()
                for found in compare_outputs(case.spec.io.writes, written, exact):
                    assert found.ok, (operation.name, str(found))
            tried.append(operation.name)
    in_torch = {o.name for o in catalogue.operations.values() if catalogue.default(o.name, "torch")}
    layers = {name for name in in_torch if catalogue.operations[name].has("backward")}
    chains = {name for name in in_torch if catalogue.operations[name].chains}
    back = {n for n in chains if any(c.backward for c in catalogue.operations[n].chains.values())}
    expected = {
        ("", "forward"): in_torch,
        ("", "backward"): layers,
        ("out", "forward"): in_torch - {"fill"},
        ("out", "backward"): set(),
        ("unfused", "forward"): chains,
        ("unfused", "backward"): back,
    }
    assert set(tried) == expected[variant, direction]
    assert {"silu", "rms_norm", "max_pool2d", "copy"} <= in_torch and "add_rms_norm" in chains


def test_it_compiles_and_runs_while_preparing_and_says_how_long(
    catalogue: Catalogue, spec_of: Specs, compiled: list[dict[str, Any]]
) -> None:
    silu = catalogue.operations["silu"]
    made = form(catalogue, "silu").prepare(spec_of(silu, "forward", ROWS, float32))
    (call,) = compiled
    assert (call["dynamic"], call["fullgraph"], call["runs"]) == (False, True, 1)
    assert made.allocates and made.compile_seconds is not None and made.compile_seconds > 0
    launch = made.bind({"x": torch.zeros(4, 32)}, None)
    assert call["runs"] == 1
    launch()
    assert call["runs"] == 2


def test_the_out_form_copies_into_what_it_is_given(
    catalogue: Catalogue, compiled: list[dict[str, Any]], bind: Any
) -> None:
    case = bind(form(catalogue, "add_rms_norm", "out"), "forward", ROWS, bfloat16)
    assert not case.prepared.allocates
    written = case.run()
    assert written["h"] is case.buffers["h"]
    assert torch.equal(written["h"], case.inputs["x"] + case.inputs["residual"])
    assert len(compiled) == 1


def test_every_case_has_code_of_its_own(
    catalogue: Catalogue, spec_of: Specs, compiled: list[dict[str, Any]]
) -> None:
    """torch.compile gives up after eight shapes of one code object."""
    silu = catalogue.operations["silu"]
    for rows in range(1, 11):
        dims = {"rows": rows, "columns": 4}
        form(catalogue, "silu").prepare(spec_of(silu, "forward", dims, float32))
    assert len({id(call["function"].__code__) for call in compiled}) == 10


def test_what_cannot_be_compiled_is_a_reason_before_anything_is_compiled(
    catalogue: Catalogue, spec_of: Specs, compiled: list[dict[str, Any]]
) -> None:
    reasons = {
        ("silu", "out", "backward"): "autograd allocates what backward writes",
        ("fill", "out", "forward"): "it is written in place by default",
    }
    for (name, variant, direction), reason in reasons.items():
        assert form(catalogue, name, variant).refuses(direction, "float32") == reason
    silu = spec_of(catalogue.operations["silu"], "forward", ROWS, float32)
    unstated: list[Any] = [lambda direction, spec: None, PerOperation({"x": Eager(torch.relu)})]
    for prepare, message in zip(unstated, ("does not state", "no torch function"), strict=True):
        with pytest.raises(CannotPrepare, match=message):
            backend.derive(prepare)("forward", silu)
    assert not compiled


class CompilerFailedError(RuntimeError):
    """As torch's: the cause inside, and a page of advice."""

    inner_exception = ValueError("no C++ compiler\nSet TORCHDYNAMO_VERBOSE=1 for more")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CompilerFailedError("backend='inductor' raised:\n"), "ValueError: no C++ compiler"),
        (RuntimeError("graph break\n\n  from user code"), "RuntimeError: graph break"),
    ],
)
def test_a_failing_compiler_is_a_reason_of_one_line(
    catalogue: Catalogue,
    spec_of: Specs,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    message: str,
) -> None:
    def fails(function: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(CannotPrepare) as caught:
        form(catalogue, "silu").prepare(
            spec_of(catalogue.operations["silu"], "forward", ROWS, float32)
        )
    assert str(caught.value) == f"torch.compile: {message}"


def test_without_a_compiler_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "a-compiler-that-is-not-there")
    reason = backend.unavailable()
    assert reason is not None and "finds no a-compiler-that-is-not-there" in reason
    monkeypatch.setenv("CXX", "true")
    assert backend.unavailable() is None


needs_compiler = pytest.mark.skipif(
    backend.unavailable() is not None, reason=str(backend.unavailable())
)


@needs_compiler
@pytest.mark.parametrize(
    ("variant", "direction"), [("", "forward"), ("out", "forward"), ("", "backward")]
)
def test_for_real_a_launch_never_compiles(
    catalogue: Catalogue, variant: str, direction: DirectionName, bind: Any
) -> None:
    case = bind(form(catalogue, "add_rms_norm", variant), direction, ROWS, bfloat16)
    exact = evaluate(case.spec.io, case.inputs)
    before = graphs()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for buffers in (case.buffers, carved(case.buffers)):
            launch = case.prepared.bind(buffers, None)
            for _ in range(2):  # the graph of backward is kept
                returned = launch()
                written = (
                    buffers if returned is None else dict(zip(names(case), returned, strict=True))
                )
                for tensor in case.spec.io.writes:
                    assert compare(tensor, written[tensor.name], exact[tensor.name]).ok
    assert graphs() == before


@needs_compiler
def test_the_count_of_graphs_sees_a_launch_that_compiles(
    catalogue: Catalogue, spec_of: Specs
) -> None:
    silu = catalogue.operations["silu"]
    made = form(catalogue, "silu").prepare(spec_of(silu, "forward", ROWS, float32))
    before = graphs()
    made.bind({"x": torch.zeros(5, 32)}, None)()  # another shape than it was prepared for
    assert graphs() == before + 1


@needs_compiler
def test_for_real_a_graph_break_is_refused(catalogue: Catalogue, spec_of: Specs) -> None:
    def in_pieces(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if float(x.sum()) > 0 else x

    with pytest.raises(CannotPrepare, match=r"^torch\.compile: \w+: [^\n]+$"):
        backend.derive(Eager(in_pieces))(
            "forward", spec_of(catalogue.operations["silu"], "forward", ROWS, float32)
        )


def carved(buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors as views of one block of memory, as they are when measured."""
    block = torch.zeros(len(buffers) * 4096, dtype=torch.uint8)
    places = {name: block[i * 4096 :][: buffers[name].nbytes] for i, name in enumerate(buffers)}
    return {
        name: places[name].view(value.dtype).view(value.shape).copy_(value)
        for name, value in buffers.items()
    }


def names(case: Any) -> list[str]:
    return [tensor.name for tensor in case.spec.io.writes]


def graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
