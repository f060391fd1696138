"""Whatever lies in the folders is found, and what is wrong there is named with its file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import membound.kernels
import pytest
from membound.kernels import discovery
from membound.kernels.discovery import BACKENDS, BrokenKernels, Catalogue, discover
from membound.kernels.dtypes import float32
from membound.kernels.imported import with_imports
from membound.kernels.spec import CannotPrepare, Spec
from membound.kernels.target import reference_target

KERNELS = Path(membound.kernels.__path__[0])

STATED = '''
"""Doubles."""
from membound.kernels.dtypes import float32
from membound.kernels.operation import Direction, Directions, operation, tensors
from membound.kernels.shapes import edge


@operation(shapes=[edge(rows=2, columns=3)], dtypes=[float32])
def NAME(rows, columns, dtype):
    x, y = tensors("x y", (rows, columns), dtype)
    return Directions(Direction([x], [y], lambda x: 2 * x))
'''
PREPARED = """
from membound.kernels.spec import Prepared

def prepare(direction, spec):
    def bind(tensors, stream):
        return lambda: tensors["y"].copy_(tensors["x"]).mul_(2) and None
    return Prepared(bind)
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))
    return path


def labels(catalogue: Catalogue, name: str) -> list[str]:
    return [i.label for i in catalogue.implementations(catalogue.operations[name])]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder of somebody else's: one family, one operation, one implementation."""
    write(tmp_path / "mine" / "doubled.py", STATED.replace("NAME", "doubled"))
    write(tmp_path / "mine" / "doubled_cpu.py", PREPARED)
    return tmp_path


def test_every_operation_file_is_found(catalogue: Catalogue) -> None:
    families = {operation.family for operation in catalogue.operations.values()}
    assert {"copy", "activation", "normalization", "pooling", "fused"} <= families
    stated = {
        file
        for file in KERNELS.glob("*/*.py")
        if file.parent.name not in {"backends", "include"} and "@operation(" in file.read_text()
    }
    assert {operation.source for operation in catalogue.operations.values()} == stated


def test_every_implementation_file_is_found(catalogue: Catalogue) -> None:
    found = {i.path for o in catalogue.operations.values() for i in catalogue.implementations(o)}
    there = {
        file
        for backend in BACKENDS
        for file in KERNELS.glob(f"*/*_{backend}.py")
        if file.parent.name != "backends"
    }
    assert there <= found


def test_a_torch_file_gives_torch_and_compile(catalogue: Catalogue) -> None:
    for operation in catalogue.operations.values():
        if (operation.source.with_name(f"{operation.stem}_torch.py")).exists():
            forms = labels(catalogue, operation.name)
            assert {"torch", "compile", "compile:out"} <= set(forms)
            assert forms.index("torch") < forms.index("compile") < forms.index("compile:out")


def test_a_chain_is_there_only_where_every_step_is(own: Path) -> None:
    family = own / "mine"
    write(family / "fused.py", fused())
    write(family / "doubled_torch.py", PREPARED)
    write(family / "fused_cupy.py", PREPARED)
    catalogue = discover([own])
    assert labels(catalogue, "fused") == ["cupy", "torch:unfused", "compile:unfused", "cpu:unfused"]
    (family / "doubled_cpu.py").unlink()
    assert "cpu:unfused" not in labels(discover([own]), "fused")


def fused(first: str = "doubled", operands: str = '{"x": "x", "y": "half"}') -> str:
    chain = f"""chain=Chain(forward=[
        Step("{first}", {operands}), Step("doubled", {{"x": "half", "y": "y"}})])"""
    text = STATED.replace("NAME", "fused").replace("dtypes=[float32]", f"dtypes=[float32], {chain}")
    return text.replace("import Direction,", "import Chain, Step, Direction,")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (fused(first="halved"), "step halved: no such operation"),
        (fused(operands='{"x": "x", "z": "half"}'), "step doubled: has no tensor z"),
        (fused(operands='{"x": "before", "y": "half"}'), "nothing before it makes its x"),
        (fused().replace('"y": "y"', '"y": "other"'), "no step writes y"),
        (fused().replace('"y": "y"}', '"y": "y"}, "backward"'), "doubled: has no backward"),
        (fused().replace("columns, dtype", "width, dtype").replace("columns", "width"), "columns"),
    ],
)
def test_a_chain_that_cannot_run_is_named(own: Path, text: str, message: str) -> None:
    write(own / "mine" / "fused.py", text)
    with pytest.raises(BrokenKernels, match=rf"fused\.py: chain 'unfused' of fused.*{message}"):
        discover([own])


def test_a_folder_of_ones_own_joins_ours(own: Path) -> None:
    catalogue = discover([own])
    assert "copy" in catalogue.operations
    doubled = catalogue.operations["doubled"]
    assert (doubled.family, doubled.summary) == ("mine", "Doubles.")
    assert labels(catalogue, "doubled") == ["cpu"]


def test_a_folder_may_hold_operations_itself(own: Path) -> None:
    assert labels(discover([own / "mine"]), "doubled") == ["cpu"]


def test_files_may_import_one_another_within_and_across_families(own: Path) -> None:
    write(own / "mine" / "_factor.py", "FACTOR = 2\n")
    write(own / "mine" / "more.py", "from ._factor import FACTOR\n" + STATED.replace("NAME", "m"))
    across = "from ..mine.doubled import doubled as base\n" + STATED.replace("NAME", "other")
    write(own / "yours" / "other.py", across)
    catalogue = discover([own])
    assert {"m", "other", "doubled"} <= catalogue.operations.keys()
    assert catalogue.operations["other"].family == "yours"
    assert catalogue.operations["doubled"].family == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("import a_package_that_is_not_there\n", "ModuleNotFoundError: No module named 'a_pack"),
        (STATED.replace("NAME", "copy"), "operation 'copy' is already in .*stream.py"),
        (STATED.replace("(rows=2, columns=3)", "(rows=2)"), "takes rows, columns; got rows"),
        (STATED.replace("[edge(rows=2, columns=3)]", "[]"), "names no shapes or no dtypes"),
        (STATED.replace("return Directions", "raise TypeError"), "at .*'rows': 2"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(
    own: Path, text: str, message: str
) -> None:
    bad = write(own / "mine" / "zbad.py", text)
    with pytest.raises(BrokenKernels, match=message) as caught:
        discover([own])
    assert str(caught.value).startswith(str(bad))
    assert "\n" not in str(caught.value)


def test_a_missing_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(BrokenKernels, match="nowhere: no such folder"):
        discover([tmp_path / "nowhere"])
    (tmp_path / "empty" / "family").mkdir(parents=True)
    with pytest.raises(BrokenKernels, match="empty: no operation file"):
        discover([tmp_path / "empty"])


def spec(catalogue: Catalogue, name: str) -> Spec:
    operation = catalogue.operations[name]
    dims = operation.shapes[0].dims
    io = operation.directions(dims, float32).forward
    return Spec(operation, "forward", dims, float32, io, reference_target("sm_90"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise OSError('no driver')\n", "OSError: no driver"),
        ("PREPARE = None\n", r"has no prepare\(direction, spec\)"),
    ],
)
def test_an_implementation_that_cannot_be_imported_is_a_reason(
    own: Path, text: str, message: str
) -> None:
    write(own / "mine" / "doubled_cpu.py", text)
    catalogue = discover([own])
    (implementation,) = catalogue.implementations(catalogue.operations["doubled"])
    reason = implementation.refuses("forward", "float32")
    assert reason is not None and "doubled_cpu.py" in reason
    with pytest.raises(CannotPrepare, match=message):
        implementation.prepare(spec(catalogue, "doubled"))


def test_prepare_must_return_what_it_promises(own: Path) -> None:
    write(own / "mine" / "doubled_cpu.py", "def prepare(direction, spec):\n    return 3\n")
    catalogue = discover([own])
    (implementation,) = catalogue.implementations(catalogue.operations["doubled"])
    with pytest.raises(CannotPrepare, match="prepare returned int"):
        implementation.prepare(spec(catalogue, "doubled"))


def test_what_a_module_and_a_backend_refuse_is_passed_on(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = PREPARED + "\ndef refuses(direction, dtype):\n    return f'never in {dtype}'\n"
    write(own / "mine" / "doubled_cpu.py", refusing)
    catalogue = discover([own])
    (implementation,) = catalogue.implementations(catalogue.operations["doubled"])
    assert implementation.refuses("forward", "float32") == "never in float32"
    assert implementation.refuses("backward", "float32") == "doubled has no backward"
    monkeypatch.setattr(discovery, "backend_unavailable", lambda backend: f"{backend} is not here")
    (implementation,) = discover([own]).implementations(implementation.operation)
    assert implementation.refuses("forward", "float32") == "cpu is not here"


def test_a_variant_may_refuse_apart_from_the_default_form(own: Path) -> None:
    text = """
VARIANTS = ("raw", "wide")
def refuses(direction, dtype): return "not like this"
def refuses_raw(direction, dtype): return None
"""
    write(own / "mine" / "doubled_cpu.py", PREPARED + text)
    catalogue = discover([own])
    found = catalogue.implementations(catalogue.operations["doubled"])
    reasons = {i.label: i.refuses("forward", "float32") for i in found}
    assert reasons == {"cpu": "not like this", "cpu:raw": None, "cpu:wide": "not like this"}


def test_named_variants_follow_the_default_and_may_differ_by_operation(own: Path) -> None:
    family = own / "mine"
    write(family / "doubled_cpu.py", PREPARED + '\nVARIANTS = ("naive",)\n')
    assert labels(discover([own]), "doubled") == ["cpu", "cpu:naive"]
    two = write(own / "two" / "pair.py", STATED.replace("NAME", "left"))
    two.write_text(two.read_text() + STATED.replace("NAME", "right"))
    write(own / "two" / "pair_cpu.py", PREPARED + '\nVARIANTS = {"right": ["naive", "wide"]}\n')
    catalogue = discover([own])
    assert labels(catalogue, "left") == ["cpu"]
    assert labels(catalogue, "right") == ["cpu", "cpu:naive", "cpu:wide"]


def test_the_steps_of_a_ladder_come_first_and_are_of_one_direction(own: Path) -> None:
    ladder = """
from membound.kernels.ladder import Ladder
LADDERS = {"doubled": Ladder("forward", ("naive", "wide")), "other": Ladder("backward", ("x",))}
VARIANTS = ("raw",)
"""
    write(own / "mine" / "doubled_cpu.py", PREPARED + ladder)
    catalogue = discover([own])
    found = catalogue.implementations(catalogue.operations["doubled"])
    assert [i.label for i in found] == ["cpu", "cpu:naive", "cpu:wide", "cpu:raw"]
    assert [i.is_step for i in found] == [False, True, True, False]
    steps = [i.ladder.step("forward", i.variant) for i in found if i.ladder]
    assert steps == [3, 1, 2, None]
    assert not any(i.has("backward") for i in found)


def test_only_the_backends_that_are_asked_for_are_imported(own: Path) -> None:
    write(own / "mine" / "doubled_numba.py", "raise SystemExit\n")
    catalogue = discover([own])
    doubled = catalogue.operations["doubled"]
    assert [i.label for i in catalogue.implementations(doubled, ["cpu"])] == ["cpu"]


def hashes(root: Path) -> dict[str, str]:
    catalogue = discover([root])
    return {
        f"{operation.name}/{i.label}": i.source_hash()
        for operation in catalogue.operations.values()
        if operation.family == "mine"
        for i in catalogue.implementations(operation)
    }


@pytest.fixture
def hashed(own: Path) -> Path:
    family = own / "mine"
    for backend in ("cuda", "torch"):
        write(family / f"doubled_{backend}.py", PREPARED)
    write(family / "doubled.cu", "// doubled\n")
    write(family / "doubled_fast.cuh", "// part of it\n")
    write(family / "_shared.py", "FACTOR = 2\n")
    write(family / "doubled_twice.py", STATED.replace("NAME", "twice"))
    write(family / "doubled_twice_cuda.py", PREPARED)
    write(family / "doubled_twice.cu", "// another operation\n")
    write(family / "fused.py", fused())
    write(family / "doubled_cpu.py", "from ._shared import FACTOR\n" + PREPARED)
    return own


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("doubled.cu", {"doubled/cuda", "fused/cuda:unfused"}),
        ("doubled_fast.cuh", {"doubled/cuda", "fused/cuda:unfused"}),
        ("doubled_twice.cu", {"twice/cuda"}),
        ("_shared.py", {"doubled/cpu", "fused/cpu:unfused"}),
        (
            "doubled_torch.py",
            {f"doubled/{i}" for i in ("torch", "compile", "compile:out")}
            | {"fused/torch:unfused", "fused/compile:unfused"},
        ),
        ("fused.py", {f"fused/{b}:unfused" for b in ("cuda", "torch", "compile", "cpu")}),
        ("notes.md", set()),
        ("unrelated.py", set()),
    ],
)
def test_a_source_hash_changes_with_the_sources_and_with_nothing_else(
    hashed: Path, file: str, changed: set[str]
) -> None:
    before = hashes(hashed)
    assert changed <= before.keys()
    path = hashed / "mine" / file
    path.write_text((path.read_text() if path.exists() else "") + "\n# changed\n")
    after = hashes(hashed)
    assert {name for name in before if before[name] != after[name]} == changed


def test_the_statement_is_part_of_every_hash(hashed: Path) -> None:
    before = hashes(hashed)
    path = hashed / "mine" / "doubled.py"
    path.write_text(path.read_text() + "\n# changed\n")
    after = hashes(hashed)
    assert {n for n in before if before[n] == after[n]} == {"twice/cuda"}


def test_a_hash_does_not_depend_on_where_the_folder_lies(hashed: Path, tmp_path: Path) -> None:
    before = hashes(hashed)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (hashed / "mine").rename(moved / "mine")
    assert hashes(moved) == before


def test_ours_hash_the_backend_they_are_made_with(catalogue: Catalogue) -> None:
    copy = catalogue.operations["copy"]
    forms = {i.label: i for i in catalogue.implementations(copy, ["torch", "compile"])}
    files = with_imports([forms["compile"].path])
    assert {f.name for f in files} == {"stream_torch.py", "torch.py", "stream.py"}
    assert len({i.source_hash() for i in (forms["torch"], forms["compile"])}) == 2
    assert forms["torch"].source_hash() == replace(forms["torch"]).source_hash()


def test_a_source_hash_needs_no_import(own: Path) -> None:
    write(own / "mine" / "doubled_cpu.py", "raise SystemExit\n")
    catalogue = discover([own])
    found = catalogue.default("doubled", "cpu")
    assert found is not None and len(found.source_hash()) == 12
