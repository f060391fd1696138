"""Kernels of other projects: how they are called, what they refuse, and that they are judged.

Liger-Kernel's own kernels run in Triton's interpreter. The others need a GPU: functions of their
names, written here in PyTorch, stand in for them.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from membound.bench import cases
from membound.bench.environment import _PACKAGES
from membound.bench.presets import Selection
from membound.bench.verify import verify
from membound.kernels.backends import flashinfer, liger, quack
from membound.kernels.backends.peers import Library
from membound.kernels.discovery import Catalogue, backend_unavailable, discover
from membound.kernels.dtypes import DTYPES, bfloat16, float32
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.operation import DIRECTIONS, DirectionName, Tensor
from membound.kernels.spec import CannotPrepare, Prepared, Spec
from membound.kernels.target import reference_target

CASES = Path(__file__).with_name("liger_cases.py")
ROWS = {"rows": 5, "columns": 96}

STAND_INS: Mapping[str, str] = {
    "quack/__init__.py": """
from quack.rmsnorm import rmsnorm
from quack.softmax import softmax
from quack.cross_entropy import cross_entropy
""",
    "quack/rmsnorm.py": """
import torch
def rmsnorm(x, weight=None, eps=1e-6):
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
def layernorm_fwd(x, weight, bias=None, eps=1e-6):
    assert weight.dtype == bias.dtype == torch.float32
    return torch.nn.functional.layer_norm(x.float(), weight.shape, weight, bias, eps).to(x.dtype)
def layernorm_bwd(x, weight, dout, rstd, mean):
    return torch.ops.aten.native_layer_norm_backward(
        dout, x, weight.shape, mean[:, None], rstd[:, None], weight, weight, [True] * 3)
""",
    "quack/softmax.py": """
import torch
def softmax(x):
    return torch.softmax(x, -1)
def softmax_bwd(dy, y):
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)
""",
    "quack/cross_entropy.py": """
import torch
def cross_entropy(x, target, ignore_index=-100, reduction="mean"):
    return torch.nn.functional.cross_entropy(
        x.float(), target, ignore_index=ignore_index, reduction=reduction)
def cross_entropy_bwd(x, target, dloss, lse, ignore_index=-100):
    wanted = torch.nn.functional.one_hot(target, x.shape[1])
    return ((x.float() - lse[:, None]).exp() - wanted).mul(dloss[:, None]).to(x.dtype)
""",
    "flashinfer/__init__.py": "",
    "flashinfer/norm.py": """
import torch
def rmsnorm(input, weight, eps=1e-6, out=None):
    out.copy_(torch.nn.functional.rms_norm(input.float(), weight.shape, weight.float(), eps))
def fused_add_rmsnorm(input, residual, weight, eps=1e-6):
    residual += input
    rmsnorm(residual, weight, eps, out=input)
""",
    "flashinfer/activation.py": """
import torch
def get_act_and_mul_module(name):
    assert name in ("silu", "gelu")
def _and_mul(function, input, out):
    gate, up = input.float().chunk(2, -1)
    out.copy_(function(gate) * up)
def silu_and_mul(input, out=None):
    _and_mul(torch.nn.functional.silu, input, out)
def gelu_and_mul(input, out=None):
    _and_mul(torch.nn.functional.gelu, input, out)
""",
}


def module_names() -> list[str]:
    """Modules of the stand-ins, and ours that have imported them."""
    heads = ("quack", "flashinfer")
    return [
        name
        for name in sys.modules
        if name.partition(".")[0] in heads
        or (name.startswith("membound.kernels.") and name.endswith(("_quack", "_flashinfer")))
    ]


@pytest.fixture
def catalogue() -> Catalogue:
    """One of its own for every test: a catalogue asks once what is installed."""
    return discover()


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in module_names():
        monkeypatch.delitem(sys.modules, name)
    for name, text in STAND_INS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    for name in module_names():
        del sys.modules[name]


def prepared(
    catalogue: Catalogue, backend: str, name: str, direction: DirectionName, arch: str = "sm_90"
) -> tuple[Spec, Prepared]:
    implementation = catalogue.default(name, backend)
    assert implementation is not None
    operation = implementation.operation
    dtype = bfloat16 if backend == "flashinfer" else float32
    assert implementation.refuses(direction, dtype.name) is None
    io = operation.directions(ROWS, dtype).get(direction)
    assert io is not None
    spec = Spec(operation, direction, ROWS, dtype, io, reference_target(arch))
    return spec, implementation.prepare(spec)


def blank(tensor: Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype.torch_dtype)


def reason(spec: Spec, made: Prepared, stated: Prepared | None = None) -> str | None:
    """Why it is wrong, where `stated` is what is said of it."""
    inputs = make_inputs(spec.operation, spec.direction, spec.dims, spec.dtype, seed=2)
    buffers = {name: value.clone() for name, value in inputs.items()}
    buffers |= {tensor.name: blank(tensor) for tensor in spec.io.outputs}
    launch, exact = made.bind(buffers, None), evaluate(spec.io, inputs)
    return verify(
        spec.io, launch, buffers, inputs, exact, lambda: None, blank, stated or made
    ).reason


CALLS: list[tuple[str, str, DirectionName]] = [
    ("quack", "rms_norm", "forward"),
    ("quack", "rms_norm", "backward"),
    ("quack", "layer_norm", "forward"),
    ("quack", "layer_norm", "backward"),
    ("quack", "softmax", "forward"),
    ("quack", "softmax", "backward"),
    ("quack", "cross_entropy", "forward"),
    ("quack", "cross_entropy", "backward"),
    ("flashinfer", "rms_norm", "forward"),
    ("flashinfer", "add_rms_norm", "forward"),
    ("flashinfer", "swiglu", "forward"),
    ("flashinfer", "geglu", "forward"),
]


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(("backend", "name", "direction"), CALLS)
def test_arguments_and_results_are_in_their_places(
    catalogue: Catalogue, backend: str, name: str, direction: DirectionName
) -> None:
    assert backend_unavailable(backend) is None
    assert reason(*prepared(catalogue, backend, name, direction)) is None


@pytest.mark.parametrize(
    ("backend", "name", "file", "right", "wrong", "said"),
    [
        ("quack", "softmax", "quack/softmax.py", "(x, -1)", "(x, 0)", "y: error"),
        ("flashinfer", "swiglu", "flashinfer/activation.py", "* up", "* gate", "y: error"),
        ("flashinfer", "add_rms_norm", "flashinfer/norm.py", "+= input", "-= input", "h: error"),
    ],
)
def test_a_wrong_result_is_rejected(
    catalogue: Catalogue,
    stand_ins: Path,
    backend: str,
    name: str,
    file: str,
    right: str,
    wrong: str,
    said: str,
) -> None:
    text = (stand_ins / file).read_text()
    assert right in text
    (stand_ins / file).write_text(text.replace(right, wrong))
    found = reason(*prepared(catalogue, backend, name, "forward"))
    assert found is not None and found.startswith(said)


@pytest.mark.usefixtures("stand_ins")
def test_inputs_that_are_written_over_are_restored_and_must_be_told_of(
    catalogue: Catalogue,
) -> None:
    spec, made = prepared(catalogue, "flashinfer", "add_rms_norm", "forward")
    assert made.in_place == {"h": "residual", "y": "x"} and not made.allocates
    found = reason(spec, made, stated=replace(made, in_place={"h": "residual"}))
    assert found is not None and found.startswith("y: error")
    found = reason(spec, made, stated=replace(made, spoils=[], in_place={}))
    assert found is not None and found.startswith("h: error")


@pytest.mark.usefixtures("stand_ins")
def test_what_is_not_restored_is_noticed(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("membound.bench.verify.restore", lambda *_: None)
    found = reason(*prepared(catalogue, "flashinfer", "add_rms_norm", "forward"))
    assert found == "h depends on what the output held before"


@pytest.mark.usefixtures("stand_ins")
def test_what_they_cannot_do_they_refuse_by_name(catalogue: Catalogue, stand_ins: Path) -> None:
    def refusal(backend: str, name: str, direction: str, dtype: str) -> str | None:
        implementation = catalogue.default(name, backend)
        assert implementation is not None
        return implementation.refuses(direction, dtype)

    found = refusal("flashinfer", "rms_norm", "backward", "bfloat16")
    assert found == "flashinfer is for inference: it has no backward"
    found = refusal("flashinfer", "rms_norm", "forward", "float32")
    assert found == "flashinfer takes float16 and bfloat16"
    assert refusal("quack", "log_softmax", "forward", "float32") == "quack has no log_softmax"
    with pytest.raises(CannotPrepare, match="needs sm_90 or later; this is sm_89"):
        prepared(catalogue, "quack", "softmax", "forward", "sm_89")
    with pytest.raises(CannotPrepare, match="a multiple of 4 classes"):
        implementation = catalogue.default("cross_entropy", "quack")
        assert implementation is not None
        spec, _ = prepared(catalogue, "quack", "cross_entropy", "backward")
        implementation.prepare(replace(spec, dims={"rows": 2, "columns": 97}))
    activation = stand_ins / "flashinfer" / "activation.py"
    lost = 'raise RuntimeError("Could not find nvcc\\nanywhere")'
    text = activation.read_text().replace('assert name in ("silu", "gelu")', lost)
    activation.write_text(text)
    with pytest.raises(CannotPrepare, match="cannot compile it here: Could not find nvcc"):
        prepared(catalogue, "flashinfer", "swiglu", "forward")


def test_a_missing_or_old_package_is_a_line() -> None:
    missing = Library("surely_not_there", "surely-not-there", (1,))
    assert missing.unavailable() == "surely-not-there is not installed (extra peers)"
    old = Library("pytest", "pytest", (999, 1)).unavailable()
    assert old == f"pytest {pytest.__version__} is older than 999.1"
    assert Library("pytest", "pytest", (8,)).unavailable() is None


@pytest.mark.usefixtures("stand_ins")
def test_presets_measure_those_that_are_installed(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(preset: str, *named: str) -> set[str]:
        selection = Selection(preset, ("rms_norm",), ("forward",), named, ("bfloat16",))
        groups = cases.plan(catalogue, selection, reference_target("sm_90"), 1 << 34)
        return {label for group in groups for label in group.implementations}

    assert {"quack", "flashinfer"} <= planned("standard")
    assert not {"liger", "quack", "flashinfer"} & planned("quick")
    gone = "gone (extra peers)"
    monkeypatch.setattr(quack, "unavailable", lambda: gone)
    assert "quack" not in planned("standard") and "flashinfer" in planned("standard")
    assert planned("standard", "quack") >= {"quack"}


def test_their_versions_are_in_the_environment_of_a_run() -> None:
    libraries = (liger.LIBRARY, quack.LIBRARY, flashinfer.LIBRARY)
    assert {library.package for library in libraries} <= set(_PACKAGES)


@pytest.fixture(scope="module")
def interpreted() -> dict[str, str]:
    """What is said of every case of Liger-Kernel."""
    pytest.importorskip("triton")
    if (lacking := backend_unavailable("liger")) is not None:
        pytest.skip(lacking)
    done = subprocess.run(
        [sys.executable, "-P", str(CASES)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_liger_is_right_wherever_it_does_not_refuse(interpreted: Mapping[str, str]) -> None:
    wrong = {
        case: said
        for case, said in interpreted.items()
        if said != "ok" and not said.startswith("refused: ")
    }
    assert wrong == {}


def test_liger_has_what_it_is_asked_for(interpreted: Mapping[str, str]) -> None:
    right = {"/".join(case.split("/")[:2]) for case, said in interpreted.items() if said == "ok"}
    both = ("rms_norm", "layer_norm", "softmax", "swiglu", "rope_half", "add_rms_norm")
    assert {f"{name}/{way}" for name in both for way in ("forward", "backward")} <= right
    assert {"group_norm/forward", "cross_entropy/forward"} <= right
    assert "cross_entropy_forward_backward/forward" in right


@pytest.mark.parametrize(
    ("name", "overwritten", "waits"),
    [
        ("rms_norm", {"backward": ["dy"]}, False),
        ("swiglu", {"backward": ["gate", "up"]}, False),
        ("rope_half", {"forward": ["q", "k"], "backward": ["drotated_q", "drotated_k"]}, False),
        ("cross_entropy_forward_backward", {"forward": ["x"]}, True),
        ("layer_norm", {}, False),
    ],
)
def test_what_liger_writes_over(
    catalogue: Catalogue, name: str, overwritten: Mapping[str, list[str]], waits: bool
) -> None:
    pytest.importorskip("triton")
    if (lacking := backend_unavailable("liger")) is not None:
        pytest.skip(lacking)
    implementation = catalogue.default(name, "liger")
    assert implementation is not None
    operation = implementation.operation
    dtype, target = DTYPES["float32"], reference_target("sm_90")
    dims = operation.shapes[0].dims
    for direction in filter(operation.has, DIRECTIONS):
        io = operation.directions(dims, dtype).get(direction)
        assert io is not None
        made = implementation.prepare(Spec(operation, direction, dims, dtype, io, target))
        assert (made.overwritten, made.waits) == (overwritten.get(direction, []), waits)
