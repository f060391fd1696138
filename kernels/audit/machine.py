"""What a cubin says of its kernels: resources, and the instructions with their branches.

The text is that of the toolkit's own disassemblers, `cuobjdump` and `nvdisasm`.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

_FUNCTION = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_SECTION = re.compile(r"^\.text\.(\S+):$", re.MULTILINE)
_LINE = re.compile(
    r"^(?:(\.L_x_\d+):|\s+/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([^;]+?)\s*;)", re.MULTILINE
)
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_REGISTER = re.compile(r"\bR(\d+)\b")
_DOUBLE = re.compile(r"^(DADD|DMUL|DFMA|DSETP|DMNMX)\b|\bF64\b|\.64\.F|F64\.")
_BITS = re.compile(r"\.(8|16|32|64|128|256)\b|\.[US](8|16)\b")
_TOOLS = ("cuobjdump", "nvdisasm")


class MissingTool(Exception):
    """The compiler, its headers or a disassembler; the message names the extra that brings it."""

    exit_code = 4


@dataclass(frozen=True)
class Instruction:
    """guard: the predicate it hangs on, "" if none. target: the label it may branch to."""

    opcode: str
    operands: str = ""
    guard: str = ""
    target: str | None = None

    @cached_property
    def name(self) -> str:
        """`LDG` of `LDG.E.128`."""
        return self.opcode.partition(".")[0]

    @cached_property
    def width(self) -> int:
        """Bytes that one thread moves, of an access to memory."""
        sizes = [int(a or b) for a, b in _BITS.findall(self.opcode)]
        return max((bits // 8 for bits in sizes), default=4)

    @cached_property
    def registers(self) -> frozenset[int]:
        """Registers it names; of an access to memory all those of its vectors.

        An address of 64 bits counts as its first register: what is loaded is used by arithmetic.
        """
        named = [int(number) for number in _REGISTER.findall(self.operands)]
        if self.name not in {"STG", "STS", "STL", "ST"}:
            return frozenset(named)
        data = [int(number) for number in _REGISTER.findall(self.operands.rpartition("]")[2])]
        each = max(self.width // 4 // max(len(data), 1), 1)
        return frozenset(named) | {first + i for first in data for i in range(each)}

    @cached_property
    def loaded(self) -> frozenset[int]:
        """Registers that a load fills."""
        before = self.operands.partition("[")[0]
        first = [int(number) for number in _REGISTER.findall(before)]
        each = max(self.width // 4 // max(len(first), 1), 1)
        return frozenset(number + i for number in first for i in range(each))


@dataclass(frozen=True)
class Machine:
    """One kernel as machine code; sizes in bytes. labels: places in `instructions`."""

    registers: int
    stack: int
    local: int
    shared: int
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]

    def access(self, kind: str) -> list[int]:
        """Bytes a thread moves in each global access: kind is LDG or STG."""
        return [one.width for one in self.instructions if one.name == kind]

    @cached_property
    def local_accesses(self) -> int:
        return sum(one.name in {"LDL", "STL"} for one in self.instructions)

    @cached_property
    def spilled(self) -> int:
        """Bytes that its stores to local memory move, each counted once."""
        return sum(self.access("STL"))

    @cached_property
    def doubles(self) -> list[str]:
        return [one.opcode for one in self.instructions if _DOUBLE.search(one.opcode)]


def disassemble(code: bytes) -> dict[str, Machine]:
    """Every kernel of a cubin, by mangled name. Raises MissingTool."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        resources = _run("cuobjdump", "-res-usage", file.name)
        text = _run("nvdisasm", "-c", "-ndf", file.name)  # no data flow: the same text, sooner
    bodies = dict(_bodies(text))
    return {
        name: Machine(int(reg), int(stack), int(local), int(shared), *parse(bodies[name]))
        for name, reg, stack, shared, local in _FUNCTION.findall(resources)
    }


def parse(body: str) -> tuple[tuple[Instruction, ...], dict[str, int]]:
    """Instructions of one kernel, and where its labels are."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for label, guard, text in _LINE.findall(body):
        if label:
            labels[label] = len(instructions)
        else:
            opcode, _, operands = text.partition(" ")
            target = _TARGET.search(operands)
            instructions.append(
                Instruction(opcode, operands.strip(), guard, target[1] if target else None)
            )
    return tuple(instructions), labels


def _bodies(text: str) -> Iterator[tuple[str, str]]:
    marks = list(_SECTION.finditer(text))
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        yield mark[1], text[mark.end() : following.start() if following else None]


def require_disassemblers() -> None:
    """Raises MissingTool where one is missing."""
    for name in _TOOLS:
        _tool(name)


def _tool(name: str) -> str:
    """A disassembler of the CUDA toolkit, or the copy that Triton brings."""
    from cuda.pathfinder import find_nvidia_binary_utility

    found: str | None = find_nvidia_binary_utility(name)
    triton = find_spec("triton")
    if not found and triton is not None and triton.origin:
        copy = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / name
        found = str(copy) if copy.exists() else None
    if found is None:
        raise MissingTool(f"no {name} here; install membound with the extra audit")
    return found


def _run(name: str, *arguments: str) -> str:
    done = subprocess.run([_tool(name), *arguments], capture_output=True, text=True, check=True)
    return done.stdout
