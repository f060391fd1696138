"""Data goes one way: kernels -> bench -> results -> analysis. Held by reading the imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import membound.kernels
import pytest

ROOT = Path(membound.kernels.__path__[0]).parent
PARTS = {"kernels", "bench", "results", "analysis", "cli"}
ALLOWED = {"kernels": {"kernels"}, "analysis": {"analysis", "results"}, "results": {"results"}}


def imported(file: Path, root: Path) -> Iterator[str]:
    """The parts of membound that `file` imports, at any depth of its code."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = tuple((node.module or "").split(".")) if node.module else ()
            if node.level:
                package = file.relative_to(root).parts[: -node.level]
                module = ("membound", *package, *module)
            names = [(*module, alias.name) for alias in node.names]
        else:
            continue
        yield from (name[1] for name in names if name[0] == "membound" and name[1] in PARTS)


def trespasses(root: Path) -> list[str]:
    return [
        f"{file.relative_to(root)} imports {part}"
        for folder, allowed in ALLOWED.items()
        for file in sorted((root / folder).rglob("*.py"))
        for part in imported(file, root)
        if part not in allowed
    ]


def test_no_part_imports_what_comes_after_it() -> None:
    assert trespasses(ROOT) == []


@pytest.mark.parametrize(
    "line",
    [
        "from ..bench import worker",
        "from .. import bench",
        "import membound.results.record",
        "from membound.analysis.loading import load",
        "def late():\n    from ..results.record import Record",
    ],
)
def test_a_trespass_is_seen(tmp_path: Path, line: str) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "bad.py").write_text(f"import torch\nfrom . import spec\n{line}\n")
    assert len(trespasses(tmp_path)) == 1


def test_analysis_may_import_results_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "analysis").mkdir()
    lines = (
        "from ..results.record import Record\nfrom .load import load\nfrom ..kernels import spec\n"
    )
    (tmp_path / "analysis" / "bad.py").write_text(lines)
    assert trespasses(tmp_path) == ["analysis/bad.py imports kernels"]
