"""Cross-entropy: that of PyTorch, targets that are no class, logits at which formulas break."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, nan

import pytest
import torch
from membound.kernels.audit.machine import disassemble
from membound.kernels.backends.cuda_nvrtc import CompileOnly
from membound.kernels.discovery import Implementation
from membound.kernels.dtypes import float32
from membound.kernels.inputs import evaluate
from membound.kernels.operation import DirectionName
from membound.kernels.spec import Spec
from membound.kernels.target import reference_target
from membound.kernels.training import cross_entropy
from membound.tests.emulator.cases import blank, place
from membound.tests.emulator.run import CATALOGUE, prepare, run_cuda, spec_of
from membound.tests.emulator.toolchain import EmulatorToolchain, Libraries, Planner
from torch.nn import functional

CLASSES = (2, 33, 1025, 70_001)
LOSSES = ("cross_entropy", "cross_entropy_smoothed")
BOTH = "_forward_backward"
APART = ("nll_loss", "nll_loss_smoothed")
WAYS: tuple[DirectionName, ...] = ("forward", "backward")
ASKED: list[tuple[str, DirectionName]] = [
    *((name, way) for name in APART for way in WAYS),
    *((name, "forward") for name in LOSSES),
    *((name, "backward") for name in LOSSES),
    *((name + BOTH, "forward") for name in LOSSES),
]

IN_PLACE = [
    replace(
        spec_of(name + BOTH, "forward", {"rows": 13, "columns": columns}, float32),
        target=reference_target(arch),
    )
    for name in LOSSES
    for arch, columns in (("sm_90", 33), ("sm_90", 20_001), ("sm_90", 70_001), ("sm_75", 70_001))
]
"""In registers, in shared memory, in that of a cluster, and read twice."""


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    planned = Libraries()
    for name, direction in ASKED:
        for columns in CLASSES:
            dims = {"rows": 1, "columns": columns}
            prepare(spec_of(name, direction, dims, float32), Planner(planned))
    for spec in IN_PLACE:
        for one in (spec, replace(spec, variant="in_place")):
            one_of(one).prepare(replace(one, toolchain=Planner(planned)))
    planned.compile()
    return planned


def one_of(spec: Spec) -> Implementation:
    found = CATALOGUE.implementations(spec.operation, ["cuda"])
    return next(one for one in found if one.variant == spec.variant)


def run(
    libraries: Libraries,
    name: str,
    direction: DirectionName,
    inputs: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    dims = dict(zip(("rows", "columns"), inputs["x"].shape, strict=True))
    return run_cuda(libraries, spec_of(name, direction, dims, float32), inputs)


def special_rows(columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and targets at which formulas break."""
    torch.manual_seed(columns)
    x = torch.randn(13, columns)
    target = torch.randint(columns, (13,))
    x[0] = -inf
    x[1, -1] = nan
    x[2, 0] = inf
    x[3], x[3, target[3]] = -inf, 2.0  # all the others are masked
    x[4, target[4]] = -inf
    x[5] += 1e4
    x[6] -= 1e4
    x[7, 0], x[7, -1] = 1e4, -1e4
    x[8] = nan
    target[8] = cross_entropy.IGNORED
    target[9], target[10], target[11] = -1, columns, 2**40
    target[12] = columns - 1
    return x, target


@pytest.mark.parametrize("columns", CLASSES)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_special_rows(libraries: Libraries, name: str, columns: int) -> None:
    x, target = special_rows(columns)
    dims = {"rows": len(x), "columns": columns}
    directions = CATALOGUE.operations[name].directions(dims, float32)
    both = CATALOGUE.operations[name + BOTH].directions(dims, float32).forward
    inputs = {"x": x, "target": target, "dloss": torch.randn(len(x))}
    exact = evaluate(directions.forward, inputs)
    got = run(libraries, name, "forward", inputs)
    agree(got["loss"], exact["loss"])
    agree(got["lse"], exact["lse"])
    for io, direction in ((both, name + BOTH), (directions.backward, name)):
        assert io is not None
        inputs["lse"] = exact["lse"].float()
        way: DirectionName = "forward" if io is both else "backward"
        dx = run(libraries, direction, way, inputs)["dx"]
        # Of logits near 1e4 an lse in float32 is uncertain by 2^-11.
        expected = evaluate(io, inputs)["dx"]
        agree(dx, expected, rtol=2e-3 if io is both else 1e-5)
        assert not dx[8].any() and dx[9:12].isnan().all()


@pytest.mark.parametrize("columns", CLASSES)
@pytest.mark.parametrize("name", APART)
def test_losses_of_logarithms_know_the_same_targets(
    libraries: Libraries, name: str, columns: int
) -> None:
    x, target = special_rows(columns)
    inputs = {"x": x, "target": target, "dloss": torch.randn(len(x))}
    for way in WAYS:
        spec = spec_of(name, way, {"rows": len(x), "columns": columns}, float32)
        exact = evaluate(spec.io, inputs)
        for output, value in run(libraries, name, way, inputs).items():
            agree(value, exact[output])
            assert not value[8].any() and value[9:12].isnan().all()


@pytest.mark.parametrize("spec", IN_PLACE, ids=lambda s: f"{s.target.arch}-{s.dims['columns']}")
def test_written_over_the_logits_a_gradient_is_the_same(libraries: Libraries, spec: Spec) -> None:
    x, target = special_rows(spec.dims["columns"])
    inputs = {"x": x, "target": target, "dloss": torch.randn(len(x))}
    expected = run_cuda(libraries, spec, inputs)
    over = replace(spec, variant="in_place", toolchain=EmulatorToolchain(libraries))
    prepared = one_of(over).prepare(over)
    buffers = {t.name: blank(t).zero_() for t in over.io.outputs}
    buffers |= {t.name: place(t, inputs[t.name]) for t in over.io.reads}
    prepared.bind(buffers, None)()
    assert prepared.in_place == {"dx": "x"} and not buffers["dx"].any()
    for name, output in (("x", "dx"), ("loss", "loss")):
        assert torch.equal(buffers[name].view(torch.int32), expected[output].view(torch.int32))
    (launched,) = over.toolchain.launches
    moved = launched.traffic[buffers["x"].data_ptr()]
    reads = 2 if prepared.choice["path"] == "twice" else 1
    targets = int(cross_entropy.is_class(target, x.shape[1]).sum()) * x.element_size()
    assert (moved.loaded, moved.stored) == (reads * x.nbytes + targets, x.nbytes)


@pytest.mark.parametrize("variant", ["", "in_place"])
def test_what_is_written_over_is_not_read_as_constant(variant: str) -> None:
    toolchain = CompileOnly()
    spec = replace(IN_PLACE[1], variant=variant, toolchain=toolchain)
    one_of(spec).prepare(spec)
    (kernel,) = toolchain.kernels
    code = disassemble(kernel.compiled.code)[kernel.symbol]
    loads = [one.opcode for one in code.instructions if one.name == "LDG"]
    assert loads and any("CONSTANT" in opcode for opcode in loads) == (not variant)


def agree(got: torch.Tensor, exact: torch.Tensor, rtol: float = 1e-5) -> None:
    torch.testing.assert_close(got.double(), exact, rtol=rtol, atol=2e-6, equal_nan=True)


def test_what_special_rows_are_worth() -> None:
    x, target = special_rows(33)
    loss, _ = cross_entropy.losses(x.double(), target, 0.0)
    assert loss[:3].isnan().all() and loss[3] == 0 and loss[4] == inf and loss[8] == 0
    assert loss[9:12].isnan().all() and loss[[5, 6, 7, 12]].isfinite().all()


@pytest.mark.parametrize("smoothing", [0.0, cross_entropy.SMOOTHING])
def test_losses_and_gradients_are_those_of_pytorch(smoothing: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(9, 17, dtype=torch.float64, requires_grad=True)
    target, dloss = torch.randint(17, (9,)), torch.randn(9, dtype=torch.float64)
    target[4] = cross_entropy.IGNORED
    expected = functional.cross_entropy(x, target, reduction="none", label_smoothing=smoothing)
    (dx,) = torch.autograd.grad(expected, x, dloss)
    loss, lse = cross_entropy.losses(x.detach(), target, smoothing)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(
        cross_entropy.gradients(dloss, x.detach(), target, lse, smoothing), dx
    )


def test_all_targets_ignored(libraries: Libraries) -> None:
    target = torch.full((3,), cross_entropy.IGNORED)
    inputs = {"x": torch.randn(3, 33), "target": target, "dloss": torch.ones(3)}
    got = run(libraries, "cross_entropy" + BOTH, "forward", inputs)
    assert not got["loss"].any() and not got["dx"].any()


def test_one_class_has_no_loss(libraries: Libraries) -> None:
    x, target = torch.randn(2, 1) * 100, torch.zeros(2).long()
    inputs = {"x": x, "target": target, "dloss": torch.ones(2)}
    got = run(libraries, "cross_entropy" + BOTH, "forward", inputs)
    assert got["loss"].abs().max() < 1e-6 and got["dx"].abs().max() < 1e-6


def test_no_class_is_refused() -> None:
    with pytest.raises(ValueError, match="columns is 0"):
        CATALOGUE.operations["cross_entropy"].directions({"rows": 4, "columns": 0}, float32)
