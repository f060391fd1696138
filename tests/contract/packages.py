"""Whether the installed packages have a name, and whether a call of it is one they accept."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from membound.tests.contract.uses import Call, Use

STUBS = {
    "torch.cuda.Stream": "_CudaStreamBase",
    "torch.cuda.Event": "_CudaEventBase",
    "torch.cuda.CUDAGraph": "_CUDAGraph",
}
"""Classes whose base is a dummy in torch's CPU build, and the base's name in torch's own stubs."""


@dataclass(frozen=True)
class Parameters:
    """What a callable accepts. most: positional arguments; None where any number."""

    names: frozenset[str]
    most: int | None
    required: frozenset[str]
    any_keyword: bool


@dataclass(frozen=True)
class Missing:
    """A name that its package lacks."""

    reason: str


_UNSEEN = Missing("")  # is there on a GPU; its parameters are unknown


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def fault(use: Use) -> str | None:
    """What is wrong with this use, in one line; None where nothing is."""
    found = _find(use.name)
    if isinstance(found, Missing):
        return None if use.guarded else found.reason or None
    if use.call is None:
        return None
    parameters = _parameters(found)
    return None if parameters is None else refused(use.name, use.call, parameters)


def checkable(name: str) -> bool:
    """Whether the arguments of a call of this name can be held against anything."""
    found = _find(name)
    return not isinstance(found, Missing) and _parameters(found) is not None


def refused(name: str, call: Call, accepts: Parameters) -> str | None:
    if accepts.most is not None and call.positional > accepts.most:
        return f"{name} takes {accepts.most} positional arguments, not {call.positional}"
    unknown = sorted(set(call.keywords) - accepts.names)
    if unknown and not accepts.any_keyword:
        return f"{name} has no parameter {unknown[0]}"
    lacking = sorted(accepts.required - set(call.keywords))
    if not call.spread and len(lacking) > call.positional:
        return (
            f"{name} needs {', '.join(lacking)}; {call.positional} positional arguments are given"
        )
    return None


@cache
def _find(name: str) -> object:
    found: object = None
    owner = ""
    for part in name.split("."):
        whole = f"{owner}.{part}" if owner else part
        if owner and hasattr(found, part):
            found = getattr(found, part)
        elif owner in STUBS:
            return _UNSEEN if part in _stub_members()[STUBS[owner]] else _missing(owner, part)
        else:
            try:
                found = importlib.import_module(whole)
            except ImportError:
                return _missing(owner, part)
        owner = whole
    return found


def _missing(owner: str, part: str) -> Missing:
    return Missing(f"{owner} has no {part}" if owner else f"{part} is not installed")


@cache
def _stub_members() -> dict[str, set[str]]:
    origin = importlib.import_module("torch").__file__
    assert origin is not None
    tree = ast.parse((Path(origin).parent / "_C" / "__init__.pyi").read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {
        node.name: {
            member.target.id
            if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name)
            else getattr(member, "name", "")
            for member in node.body
        }
        for node in classes
    }


@cache
def _parameters(found: object) -> Parameters | None:
    """None where nothing says what it accepts."""
    if not callable(found):
        return None
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return _from_docstring(found)
    return _from_signature(signature)


def _from_signature(signature: inspect.Signature) -> Parameters:
    kinds = inspect.Parameter
    # Uses name methods through their class; `typingctx` is what Numba gives an intrinsic.
    listed = [p for p in signature.parameters.values() if p.name not in ("self", "typingctx")]
    named = [p for p in listed if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    positional = [
        p for p in listed if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    starred = any(p.kind is kinds.VAR_POSITIONAL for p in listed)
    required = [
        p.name
        for p in listed
        if p.default is kinds.empty and p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    ]
    return Parameters(
        frozenset(p.name for p in named),
        None if starred else len(positional),
        frozenset(required),
        any(p.kind is kinds.VAR_KEYWORD for p in listed),
    )


def _from_docstring(found: object) -> Parameters | None:
    """Cython's classes show `Name(parameters)` in the first line of their docstring."""
    if not str(getattr(found, "__module__", "")).startswith(("cuda.", "cupy.")):
        return None  # others' first lines are prose
    first = (inspect.getdoc(found) or "").partition("\n")[0]
    shown = re.match(r"[\w.]+\((.*)\)(?: -> .*)?$", first)
    if shown is None or shown.group(1) in ("*args, **kwargs", "..."):
        return None
    names, required, most, keyword_only, starred = [], [], 0, False, False
    for text in _split(shown.group(1)):
        if text in ("*", "/"):
            keyword_only = keyword_only or text == "*"
        elif text.startswith("**"):
            return None
        elif text.startswith("*"):
            starred = True
        else:
            name = re.split(r"[:=]", text)[0].split()[-1]  # after a C type
            names.append(name)
            most += not (keyword_only or starred)
            if "=" not in text:
                required.append(name)
    return Parameters(frozenset(names), None if starred else most, frozenset(required), False)


def _split(text: str) -> list[str]:
    """Parameters, at the commas that no bracket encloses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]
