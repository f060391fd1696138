"""A chain runs its steps in order, hands intermediates on, and keeps them to itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from membound.kernels import chain
from membound.kernels.discovery import Catalogue, Implementation
from membound.kernels.dtypes import float16, float32
from membound.kernels.operation import DirectionName, Directions, Tensor
from membound.kernels.spec import CannotPrepare, Launch, Prepared, Spec, Tensors

DIMS = {"rows": 2, "columns": 3}


@dataclass
class FakeBackend:
    """Implementations of the steps that write down what is asked of them.

    allocating: names of operations whose launch returns new tensors.
    """

    allocating: Sequence[str] = ()
    scratch: Sequence[Tensor] = ()
    in_place: Mapping[str, str] = field(default_factory=dict)
    compile_seconds: float | None = None
    events: list[str] = field(default_factory=list)
    specs: list[Spec] = field(default_factory=list)
    bound: list[Tensors] = field(default_factory=list)
    given: list[Tensors] = field(default_factory=list)
    returned: list[torch.Tensor] = field(default_factory=list)

    def prepare(self, implementation: Implementation, spec: Spec) -> Prepared:
        name = spec.operation.name
        self.events.append(f"prepare {name}")
        self.specs.append(spec)

        def bind(tensors: Tensors, stream: Any) -> Launch:
            self.events.append(f"bind {name} on {stream}")
            self.bound.append(tensors)

            def launch(**fresh: torch.Tensor) -> list[torch.Tensor] | None:
                self.events.append(f"launch {name}")
                self.given.append(fresh)
                if name not in self.allocating:
                    return None
                outputs = [torch.zeros(t.shape) for t in spec.io.writes]
                self.returned += outputs
                return outputs

            return launch

        return Prepared(
            bind=bind,
            scratch=self.scratch,
            allocates=name in self.allocating,
            in_place=self.in_place,
            choice=spec.choice or {"made by": name},
            compile_seconds=self.compile_seconds,
        )


Prepare = Callable[[FakeBackend, DirectionName], tuple[Spec, Prepared]]


@pytest.fixture
def prepare(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, spec_of: Callable[..., Spec]
) -> Prepare:
    def prepare_chain(backend: FakeBackend, direction: DirectionName) -> tuple[Spec, Prepared]:
        monkeypatch.setattr(Implementation, "prepare", lambda own, spec: backend.prepare(own, spec))
        fused = catalogue.operations["add_rms_norm"]
        unfused = catalogue.implementations(fused, ["torch"])[-1]
        assert unfused.label == "torch:unfused"
        spec = spec_of(fused, direction, DIMS, float16, "unfused")
        return spec, chain.prepare(catalogue, unfused, replace(spec, choice={"block": 1}))

    return prepare_chain


def buffers(spec: Spec, prepared: Prepared) -> dict[str, torch.Tensor]:
    operands = (*spec.io.operands.values(), *prepared.scratch)
    return {tensor.name: torch.zeros(tensor.shape) for tensor in operands}


def test_steps_are_prepared_bound_and_launched_in_order(prepare: Prepare) -> None:
    backend = FakeBackend()
    spec, prepared = prepare(backend, "forward")
    launch = prepared.bind(buffers(spec, prepared), "stream 7")
    assert launch() is None and not prepared.allocates
    assert backend.events == [
        "prepare add",
        "prepare rms_norm",
        "bind add on stream 7",
        "bind rms_norm on stream 7",
        "launch add",
        "launch rms_norm",
    ]


def test_steps_keep_their_intermediates_in_the_cache_and_choose_for_themselves(
    prepare: Prepare,
) -> None:
    backend = FakeBackend()
    prepare(backend, "backward")
    for spec in backend.specs:
        assert (spec.streaming, spec.variant, spec.choice) == (False, "", None)
        assert (spec.dims, spec.dtype) == (DIMS, float16)
    assert [(s.operation.name, s.direction) for s in backend.specs] == [
        ("rms_norm", "backward"),
        ("add", "forward"),
    ]


def test_a_chain_chooses_what_its_steps_choose_and_hands_it_back_to_them(
    catalogue: Catalogue, prepare: Prepare
) -> None:
    backend = FakeBackend()
    spec, first = prepare(backend, "forward")
    assert first.choice == {"0.made by": "add", "1.made by": "rms_norm"}
    unfused = catalogue.implementations(spec.operation, ["torch"])[-1]
    chosen = {"0.block": 64, "1.block": 128, "1.warps": 4}
    again = chain.prepare(catalogue, unfused, replace(spec, choice=chosen))
    assert [one.choice for one in backend.specs[2:]] == [{"block": 64}, {"block": 128, "warps": 4}]
    assert again.choice == chosen


def test_intermediates_are_scratch_and_operands_are_not(prepare: Prepare) -> None:
    backend = FakeBackend(scratch=[Tensor("partial", (5,), float32)])
    _, forward = prepare(backend, "forward")
    assert {t.name: t.dtype for t in forward.scratch} == {
        "0.partial": float32,
        "1.partial": float32,
    }
    spec, backward = prepare(backend, "backward")
    assert {t.name for t in backward.scratch} == {"dnorm", "0.partial", "1.partial"}
    tensors = buffers(spec, backward)
    backward.bind(tensors, None)
    norm, add = backend.bound
    assert norm["dx"] is add["a"] is tensors["dnorm"]
    assert norm["x"] is tensors["h"] and add["b"] is tensors["dh"] and add["y"] is tensors["dx"]
    assert norm["partial"] is tensors["0.partial"] and add["partial"] is tensors["1.partial"]


def test_what_a_step_allocates_is_handed_to_the_next_one(prepare: Prepare) -> None:
    backend = FakeBackend(allocating=["add", "rms_norm"])
    spec, prepared = prepare(backend, "forward")
    assert prepared.allocates
    launch = prepared.bind(buffers(spec, prepared), None)
    for _ in range(2):
        outputs = launch()
        h, y = backend.returned[-2:]
        assert outputs is not None and outputs[0] is h and outputs[1] is y
        assert backend.given[-2] == {}
        assert list(backend.given[-1]) == ["x"] and backend.given[-1]["x"] is h
    assert len({id(tensor) for tensor in backend.returned}) == 4
    assert backend.events.count("bind rms_norm on None") == 1


def test_bound_and_allocated_outputs_are_returned_together(prepare: Prepare) -> None:
    backend = FakeBackend(allocating=["rms_norm"])
    spec, prepared = prepare(backend, "forward")
    tensors = buffers(spec, prepared)
    outputs = prepared.bind(tensors, None)()
    assert outputs is not None
    assert outputs[0] is tensors["h"] and outputs[1] is backend.returned[-1]

    spec, prepared = prepare(backend, "backward")
    tensors = buffers(spec, prepared)
    outputs = prepared.bind(tensors, None)()
    assert outputs is not None
    dnorm, dweight = backend.returned[-2:]
    assert outputs[0] is tensors["dx"] and outputs[1] is dweight
    assert backend.given[-1]["a"] is dnorm


def test_the_time_of_compiling_is_that_of_the_steps(prepare: Prepare) -> None:
    assert prepare(FakeBackend(compile_seconds=1.5), "forward")[1].compile_seconds == 3
    assert prepare(FakeBackend(), "forward")[1].compile_seconds is None


def test_what_a_step_refuses_is_the_reason_of_the_chain(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused = catalogue.operations["add_rms_norm"]
    unfused = catalogue.implementations(fused, ["torch"])[-1]
    assert unfused.refuses("forward", "float32") is None
    original = Implementation.refuses

    def refuses(self: Implementation, direction: str, dtype: str) -> str | None:
        norm = self.operation.name == "rms_norm"
        return f"no {dtype}" if norm else original(self, direction, dtype)

    monkeypatch.setattr(Implementation, "refuses", refuses)
    assert unfused.refuses("forward", "float32") == "step rms_norm: no float32"


def test_a_direction_without_a_chain_says_so(catalogue: Catalogue) -> None:
    fused = catalogue.operations["add_rms_norm"]
    half = replace(fused, chains={"unfused": replace(fused.chains["unfused"], backward=())})
    unfused = replace(catalogue.implementations(fused, ["torch"])[-1], operation=half)
    assert unfused.refuses("backward", "float32") == "add_rms_norm names no backward chain"
    args = (catalogue.operations, half, "unfused")
    assert chain.traffic(*args, "backward", DIMS, float32) is None


def test_a_step_that_writes_over_its_inputs_cannot_be_prepared(prepare: Prepare) -> None:
    with pytest.raises(CannotPrepare, match="step add writes over what it reads"):
        prepare(FakeBackend(in_place={"sum": "x"}), "forward")


def test_a_step_without_the_backend_cannot_be_prepared(
    catalogue: Catalogue, spec_of: Callable[..., Spec]
) -> None:
    fused = catalogue.operations["add_rms_norm"]
    unfused = replace(catalogue.implementations(fused, ["torch"])[-1], backend="liger")
    with pytest.raises(CannotPrepare, match="step add has no liger implementation"):
        chain.prepare(catalogue, unfused, spec_of(fused, "forward", DIMS, float32, "unfused"))


def test_what_forward_made_is_there_for_backward_only_where_it_can_be_made_again(
    catalogue: Catalogue,
) -> None:
    gated = catalogue.operations["swiglu"]
    assert not list(chain.faults(catalogue.operations, gated))

    def without_gate(**extents: Any) -> Directions:
        stated = gated.statement(**extents)
        assert stated.backward is not None
        reads = [tensor for tensor in stated.backward.reads if tensor.name != "gate"]
        return replace(stated, backward=replace(stated.backward, reads=reads))

    # `statement` keeps its signature, from which the extents are read.
    without_gate.__signature__ = inspect.signature(gated.statement)  # type: ignore[attr-defined]
    faults = list(chain.faults(catalogue.operations, replace(gated, statement=without_gate)))
    assert any("step mul: nothing before it makes its b" in fault for fault in faults)


def test_what_layers_apart_keep_in_another_form_is_named(catalogue: Catalogue) -> None:
    fused = catalogue.operations["batch_norm_add_relu"]
    assert not list(chain.faults(catalogue.operations, fused))
    forgotten = replace(fused, chains={"unfused": replace(fused.chains["unfused"], kept={})})
    faults = list(chain.faults(catalogue.operations, forgotten))
    assert any("step relu: nothing before it makes its y" in fault for fault in faults)


def test_what_steps_have_in_float32_is_cast_where_it_is_not(catalogue: Catalogue) -> None:
    steps = catalogue.operations["cross_entropy_forward_backward"].chains["unfused"].steps
    plain, cast = steps("forward", float32), steps("forward", float16)
    assert [step.operation for step in cast] == [
        "cast_to_float32",
        *(step.operation for step in plain),
        "cast_to_float16",
    ]
    assert cast[0].operands["y"] == cast[1].operands["x"] != "x" == plain[0].operands["x"]
    assert cast[-1].operands["x"] == cast[-2].operands["dx"] != "dx" == cast[-1].operands["y"]
    backward = catalogue.operations["cross_entropy"].chains["unfused"].steps("backward", float16)
    assert [step.operation for step in backward] == ["nll_loss", "log_softmax", "cast_to_float16"]
