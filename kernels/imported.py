"""Which of our files, or of somebody's beside theirs, a Python file imports."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def with_imports(files: Iterable[Path]) -> set[Path]:
    """`files` and whatever of our families and backends, or beside them, they import."""
    found: set[Path] = set()
    waiting = [file.resolve() for file in files]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            named = _named_by(file, file.read_bytes())
            waiting += [f for f in named if f.is_file() and f.parent != _HERE]
    return found


@cache
def _named_by(file: Path, text: bytes) -> tuple[Path, ...]:
    """Files that the imports of a file of this text may mean."""
    return tuple(_imports(file, ast.parse(text)))


def _imports(file: Path, tree: ast.Module) -> Iterator[Path]:
    """Relative imports, and ours by their full name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = node.module or ""
        if node.level:
            base = file.parents[node.level - 1]
        elif module.startswith(f"{__package__}."):
            base, module = _HERE, module.removeprefix(f"{__package__}.")
        else:
            continue
        path = base.joinpath(*module.split("."))
        yield path.with_suffix(".py")
        yield from (path / f"{alias.name}.py" for alias in node.names)
