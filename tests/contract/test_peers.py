"""The kernels of other projects are called as their packages accept it.

Liger-Kernel is installed with the tests. The others bring compilers of gigabytes with them, so that
their sources are read: those of the oldest version that the extra admits, under `make audit`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from membound.kernels.backends import flashinfer, liger, quack
from membound.tests.contract.packages import fault as fault_of_installed
from membound.tests.contract.packages import installed
from membound.tests.contract.sources import fault
from membound.tests.contract.uses import PEERS, Use, uses

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = {
    library.module: library for library in (liger.LIBRARY, quack.LIBRARY, flashinfer.LIBRARY)
}
UNREACHABLE = re.compile("sending request|failed to fetch|dns error", re.IGNORECASE)


def used(module: str) -> list[Use]:
    suffix = module.removesuffix("_kernel")
    files = sorted((ROOT / "kernels").glob(f"*/*_{suffix}.py"))
    return [u for f in files for u in uses(f.read_text()) if u.name.partition(".")[0] == module]


def bounds() -> dict[str, str]:
    """Package to its version bounds, as the extra states them."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        stated = tomllib.load(file)["project"]["optional-dependencies"]["peers"]
    found = (re.fullmatch("([a-z-]+)(.*)", line) for line in stated)
    return {match[1]: match[2] for match in found if match}


@pytest.mark.parametrize("module", PEERS)
def test_what_is_oldest_is_said_alike(module: str) -> None:
    library = LIBRARIES[module]
    oldest = ".".join(map(str, library.oldest))
    major, minor, *_ = library.oldest
    assert bounds()[library.package] == f">={oldest},<{major}.{minor + 1}"


@pytest.mark.parametrize("module", PEERS)
def test_every_file_calls_its_library(module: str) -> None:
    assert sum(use.call is not None for use in used(module)) >= 4


def test_liger_is_called_as_it_accepts() -> None:
    pytest.importorskip("liger_kernel")
    assert [reason for use in used("liger_kernel") if (reason := fault_of_installed(use))] == []


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    (tmp_path / "quack").mkdir()
    (tmp_path / "quack" / "__init__.py").write_text(
        "from quack.rows import softmax\nfrom .rows import norm as rmsnorm\n"
    )
    (tmp_path / "quack" / "rows.py").write_text(
        "def softmax(x): ...\ndef norm(x, weight=None, *, eps): ...\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("from quack import softmax\nsoftmax(1)", None),
        ("from quack.rows import softmax\nsoftmax(x=1)", None),
        ("from quack import rmsnorm\nrmsnorm(1, eps=2)", None),
        ("from quack import rmsnorm\nrmsnorm(1)", "quack.rmsnorm needs eps, x"),
        ("from quack import rmsnorm\nrmsnorm(1, 2, eps=3, bias=4)", "has no parameter bias"),
        ("from quack import softmax\nsoftmax(1, 2)", "takes 1 positional arguments, not 2"),
        ("from quack import soft_max", "there is no quack.soft_max"),
        ("from quack.row import softmax", "there is no quack.row.softmax"),
    ],
)
def test_a_call_that_the_sources_refuse_is_seen(
    made_up: Path, text: str, reason: str | None
) -> None:
    found = [line for use in uses(text) if (line := fault(made_up, use))]
    assert found == [] if reason is None else any(reason in line for line in found), found


@pytest.mark.audit
@pytest.mark.parametrize("module", ["quack", "flashinfer"])
def test_the_sources_accept_every_call(module: str, tmp_path: Path) -> None:
    library = LIBRARIES[module]
    pinned = f"{library.package}=={'.'.join(map(str, library.oldest))}"
    command = [sys.executable, "-m", "uv", "-q", "pip", "install", "--no-deps", "--target"]
    ran = subprocess.run(
        [*command, str(tmp_path), pinned], capture_output=True, text=True, check=False
    )
    if ran.returncode and UNREACHABLE.search(ran.stderr):
        pytest.skip(f"no package index reached: {ran.stderr.strip().splitlines()[-1]}")
    assert ran.returncode == 0, ran.stderr
    assert [reason for use in used(module) if (reason := fault(tmp_path, use))] == []
    if installed(module):
        assert [reason for use in used(module) if (reason := fault_of_installed(use))] == []
