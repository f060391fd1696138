"""What a cubin says of its kernels: resources, and the instructions that matter for bandwidth."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_FUNCTION = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_SECTION = re.compile(r"^\.text\.(\S+):$", re.MULTILINE)
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
_DOUBLE = re.compile(r"^(DADD|DMUL|DFMA|DSETP|DMNMX)\b|\bF64\b|\.64\.F|F64\.")
_BITS = re.compile(r"\.(8|16|32|64|128|256)\b|\.[US](8|16)\b")
_ALLOCATION = 256
"""Registers are given to a warp by so many."""


@dataclass(frozen=True)
class Machine:
    """One kernel as machine code; sizes in bytes."""

    registers: int
    stack: int
    local: int
    shared: int
    instructions: tuple[str, ...]

    def access(self, kind: str) -> list[int]:
        """Bytes a thread moves in each global access: kind is LDG or STG."""
        found = (one for one in self.instructions if one.startswith(kind))
        return [_width(one) for one in found]

    @property
    def local_accesses(self) -> int:
        return sum(one.startswith(("LDL", "STL")) for one in self.instructions)

    @property
    def doubles(self) -> list[str]:
        return [one for one in self.instructions if _DOUBLE.search(one)]

    def registers_of_block(self, threads: int) -> int:
        warps = -(-threads // 32)
        per_warp = -(-self.registers * 32 // _ALLOCATION) * _ALLOCATION
        return warps * per_warp


def _width(instruction: str) -> int:
    sizes = [int(a or b) for a, b in _BITS.findall(instruction)]
    return max((bits // 8 for bits in sizes), default=4)


def tool(name: str) -> str | None:
    """A disassembler of the CUDA toolkit, or the copy that Triton brings."""
    from cuda.pathfinder import find_nvidia_binary_utility

    found: str | None = find_nvidia_binary_utility(name)
    triton = find_spec("triton")
    if not found and triton is not None and triton.origin:
        copy = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / name
        found = str(copy) if copy.exists() else None
    return found


def disassemble(code: bytes) -> dict[str, Machine]:
    """Every kernel of a cubin, by mangled name."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        resources = _run("cuobjdump", "-res-usage", file.name)
        text = _run("nvdisasm", "-c", file.name)
    bodies = dict(_bodies(text))
    return {
        name: Machine(int(reg), int(stack), int(local), int(shared), bodies[name])
        for name, reg, stack, shared, local in _FUNCTION.findall(resources)
    }


def _bodies(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    marks = list(_SECTION.finditer(text))
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        body = text[mark.end() : following.start() if following else None]
        yield mark[1], tuple(_INSTRUCTION.findall(body))


def _run(name: str, *arguments: str) -> str:
    found = tool(name)
    assert found is not None, f"no {name}: install triton, or the CUDA toolkit"
    done = subprocess.run([found, *arguments], capture_output=True, text=True, check=True)
    return done.stdout
