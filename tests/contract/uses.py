"""Names of other packages that a source text uses, with the calls made of them.

Only the text is read. A name is followed through imports (at any depth), assignments from calls of
classes, annotations, and what `HELD` and `RETURNS` say of values whose class no text shows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

PEERS = ("liger_kernel", "quack", "flashinfer")
ROOTS = ("torch", "cuda", "cupy", "numba", "triton", "pynvml", "cupti", *PEERS)

HELD = {
    "stream": "torch.cuda.Stream()",
    "driver": "cuda.bindings.driver",
    "nvml": "pynvml",
    "self._kernel": "cuda.core.Kernel()",
    "self._raw": "cupy.RawKernel()",
    "self._cupti": "cupti.cupti",
}
"""What a parameter or attribute of this name is, where its annotation does not say. With `()`: an
instance of the class."""

RETURNS = {
    "torch.zeros": "torch.Tensor()",
    "torch.ones": "torch.Tensor()",
    "torch.empty": "torch.Tensor()",
    "torch.Tensor.pin_memory": "torch.Tensor()",
    "torch.cuda.current_stream": "torch.cuda.Stream()",
    "cuda.core.Program.compile": "cuda.core.ObjectCode()",
    "cuda.core.ObjectCode.from_cubin": "cuda.core.ObjectCode()",
    "cuda.core.ObjectCode.get_kernel": "cuda.core.Kernel()",
    "cuda.core.Kernel.attributes": "cuda.core._module.KernelAttributes()",
    "cupy.RawModule.get_function": "cupy.RawKernel()",
    "triton.compile": "triton.compiler.CompiledKernel()",
}
"""What a call gives, or an attribute that is read."""

_ANYTHING = "triton.language.constexpr"  # annotates values of any class


@dataclass(frozen=True)
class Call:
    positional: int
    keywords: tuple[str, ...]
    spread: bool  # with * or **: arguments that the text does not show


@dataclass(frozen=True)
class Use:
    line: int
    name: str  # dotted
    call: Call | None
    guarded: bool = False  # by hasattr: it need not be there


def uses(text: str) -> list[Use]:
    """Every use of the packages of `ROOTS` in the text, in the order of its lines."""
    tree = ast.parse(text)
    known = {name: kind for name, kind in HELD.items() if "." in name}
    reader = _Reader()
    for node in ast.walk(tree):  # what methods of a class leave for each other
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            reader.annotated.append((node.target, node.annotation))
    reader.module(tree, known)
    found = (
        replace(use, guarded=any(f"{use.name}.".startswith(f"{name}.") for name in reader.guarded))
        for use in reader.found
    )
    return sorted(found, key=lambda use: use.line)


class _Reader:
    def __init__(self) -> None:
        self.found: list[Use] = []
        self.guarded: set[str] = set()
        self.annotated: list[tuple[ast.Attribute, ast.expr]] = []

    def module(self, tree: ast.Module, known: dict[str, str]) -> None:
        for node in ast.walk(tree):  # imports of TYPE_CHECKING serve everywhere
            if isinstance(node, ast.If):
                self._imports(node.body, known)
        self._imports(tree.body, known)
        for target, annotation in self.annotated:
            self._remember(target, self._annotated(annotation, dict(known)), known)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                self._remember(node.targets[0], self._value(node.value, dict(known)), known)
        self.found.clear()
        self._block(tree.body, known)

    def _imports(self, body: list[ast.stmt], known: dict[str, str]) -> None:
        for node in body:
            for local, name in _imported(node):
                known[local] = name
                self.found.append(Use(node.lineno, name, None))

    def _block(self, body: list[ast.stmt], known: dict[str, str]) -> None:
        for node in body:
            self._statement(node, known)

    def _statement(self, node: ast.stmt, known: dict[str, str]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._function(node, known)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._imports([node], known)
        elif isinstance(node, ast.Assign):
            kind = self._value(node.value, known)
            for target in node.targets:
                self._value(target, known)
                self._remember(target, kind, known)
        elif isinstance(node, ast.AnnAssign):
            kind = self._annotated(node.annotation, known)
            if node.value is not None:
                self._value(node.value, known)
            self._remember(node.target, kind, known)
        elif isinstance(node, ast.With):
            for item in node.items:
                kind = self._value(item.context_expr, known)
                if item.optional_vars is not None:
                    self._remember(item.optional_vars, kind, known)
            self._block(node.body, known)
        else:
            self._children(node, known)

    def _function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, known: dict[str, str]
    ) -> None:
        inside = dict(known)
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            inside.pop(argument.arg, None)
            kind = self._annotated(argument.annotation, known) or HELD.get(argument.arg)
            if kind:
                inside[argument.arg] = kind
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is not None:
                self._value(default, known)
        if isinstance(node, ast.Lambda):
            self._value(node.body, inside)
            return
        for expression in (*node.decorator_list, *([node.returns] if node.returns else [])):
            self._value(expression, known)
        self._block(node.body, inside)

    def _value(self, node: ast.expr, known: dict[str, str]) -> str | None:
        """What the expression is: the dotted name of an object or, of an instance, its class."""
        if isinstance(node, ast.Name):
            return known.get(node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, known)
        if isinstance(node, ast.Call):
            return self._call(node, known)
        if isinstance(node, ast.Lambda):
            self._function(node, known)
            return None
        self._children(node, known)
        return None

    def _attribute(
        self, node: ast.Attribute, known: dict[str, str], called: bool = False
    ) -> str | None:
        if isinstance(node.value, ast.Name) and (key := f"{node.value.id}.{node.attr}") in known:
            return known[key]
        owner = self._value(node.value, known)
        if owner is None:
            return None
        name = f"{owner.removesuffix('()')}.{node.attr}"
        self.found.append(Use(node.lineno, name, None))
        return RETURNS.get(name) if owner.endswith("()") and not called else name

    def _call(self, node: ast.Call, known: dict[str, str]) -> str | None:
        function = node.func
        if isinstance(function, ast.Attribute):
            called = self._attribute(function, known, called=True)
        else:
            called = self._value(function, known)
        for argument in node.args:
            self._value(argument, known)
        for keyword in node.keywords:
            self._value(keyword.value, known)
        if called is None:
            if isinstance(function, ast.Name) and function.id == "hasattr":
                self._guard(node, known)
            return None
        if called.endswith("()"):
            called = f"{called.removesuffix('()')}.__call__"
        spread = any(isinstance(a, ast.Starred) for a in node.args)
        spread = spread or any(k.arg is None for k in node.keywords)
        keywords = tuple(k.arg for k in node.keywords if k.arg is not None)
        self.found.append(Use(node.lineno, called, Call(len(node.args), keywords, spread)))
        capital = called.rpartition(".")[2][:1].isupper()
        return RETURNS.get(called, f"{called}()" if capital else None)

    def _guard(self, call: ast.Call, known: dict[str, str]) -> None:
        owner, attribute = self._value(call.args[0], known), call.args[1]
        if owner and isinstance(attribute, ast.Constant) and isinstance(attribute.value, str):
            self.guarded.add(f"{owner.removesuffix('()')}.{attribute.value}")

    def _children(self, node: ast.AST, known: dict[str, str]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self._statement(child, known)
            elif isinstance(child, ast.expr):
                self._value(child, known)
            else:
                self._children(child, known)

    def _annotated(self, annotation: ast.expr | None, known: dict[str, str]) -> str | None:
        kind = self._value(annotation, known) if annotation else None
        return f"{kind}()" if kind and kind != _ANYTHING else None

    def _remember(self, target: ast.expr, kind: str | None, known: dict[str, str]) -> None:
        if isinstance(target, ast.Name):
            key = target.id
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            key = f"{target.value.id}.{target.attr}"
        else:
            return
        if kind is None:
            if isinstance(target, ast.Name):
                known.pop(key, None)
        else:
            known[key] = kind


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(local name, dotted name) of what an import brings of `ROOTS`."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] in ROOTS:
                yield (
                    (alias.asname, alias.name)
                    if alias.asname
                    else (alias.name.split(".")[0], alias.name.split(".")[0])
                )
    elif isinstance(node, ast.ImportFrom) and not node.level:
        module = node.module or ""
        if module.split(".")[0] in ROOTS:
            for alias in node.names:
                yield alias.asname or alias.name, f"{module}.{alias.name}"
