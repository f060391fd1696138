"""Whether the sources of a package have a function, and whether a call of it is one they accept.

For packages that are not installed: their text is read and nothing of theirs is run.
"""

from __future__ import annotations

import ast
from pathlib import Path

from membound.tests.contract.packages import Parameters, refused
from membound.tests.contract.uses import Use


def fault(root: Path, use: Use) -> str | None:
    """What is wrong with this use of a function whose package lies in `root`; None: nothing."""
    if _module(root, use.name) is not None:  # a module, named on the way to what is in it
        return None
    function = find(root, use.name)
    if function is None:
        return f"there is no {use.name}"
    return None if use.call is None else refused(use.name, use.call, _parameters(function))


def find(root: Path, name: str) -> ast.FunctionDef | None:
    """The function of this dotted name, through the imports that lead to it."""
    owner, _, own = name.rpartition(".")
    module = _module(root, owner)
    if module is None:
        return None
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == own:
            return node
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == own:
                    return find(root, f"{_source(owner, module, node)}.{alias.name}")
    return None


def _module(root: Path, name: str) -> Path | None:
    path = root.joinpath(*name.split("."))
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None) if name else None


def _source(owner: str, module: Path, node: ast.ImportFrom) -> str:
    """The module that an import in `owner` takes from."""
    if not node.level:
        return node.module or ""
    above = owner.split(".")[: None if module.name == "__init__.py" else -1]
    above = above[: len(above) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _parameters(function: ast.FunctionDef) -> Parameters:
    given = function.args
    positional = [a.arg for a in (*given.posonlyargs, *given.args)]
    required = positional[: len(positional) - len(given.defaults)]
    keywords = [a.arg for a in given.kwonlyargs]
    required += [
        name for name, default in zip(keywords, given.kw_defaults, strict=True) if default is None
    ]
    return Parameters(
        frozenset([*(a.arg for a in given.args), *keywords]),
        None if given.vararg else len(positional),
        frozenset(required),
        given.kwarg is not None,
    )
