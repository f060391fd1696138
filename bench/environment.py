"""What of the machine and the code goes into environment.json."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_MEASURED = ("kernels", "bench", "pyproject.toml")
"""What decides a number: a change elsewhere does not make a run dirty."""

_PACKAGES = (
    "numpy", "torch", "numba", "triton", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime", "numba-cuda", "cupy-cuda13x", "cupy-cuda12x", "nvidia-ml-py",
    "cupti-python", "nvidia-cuda-cupti", "liger-kernel", "quack-kernels", "flashinfer-python",
    "nvidia-cutlass-dsl",
)  # fmt: skip


@dataclass(frozen=True)
class Revision:
    """The commit the code is at; `reason` says why it, or whether it is dirty, is unknown."""

    commit: str | None
    dirty: bool | None
    reason: str | None


def revision(root: Path = ROOT) -> Revision:
    """`MEMBOUND_COMMIT` where it is set (a build that left git behind), else what git says."""
    given = os.environ.get("MEMBOUND_COMMIT")
    if given:
        return Revision(given, None, "given by MEMBOUND_COMMIT")
    if not (root / ".git").exists():
        return Revision(None, None, "not a git checkout")
    try:
        commit = _git(root, "rev-parse", "HEAD")
        changes = _git(root, "status", "--porcelain", "--", *_MEASURED)
    except (OSError, subprocess.SubprocessError) as error:
        words = getattr(error, "stderr", None) or str(error)
        return Revision(None, None, f"git: {str(words).strip().partition(chr(10))[0]}")
    return Revision(commit, bool(changes), None)


def changed_since(commit: str, root: Path = ROOT) -> bool:
    """Whether what decides a number differs from `commit`, or git cannot tell."""
    if not re.fullmatch(r"[0-9a-f]{7,64}", commit):  # it comes from a file, and goes to git
        return True
    try:
        return bool(_git(root, "diff", "--name-only", commit, "HEAD", "--", *_MEASURED))
    except (OSError, subprocess.SubprocessError):
        return True


def versions() -> dict[str, str]:
    """Python and every package that touches a measurement, as installed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git(root: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["git", "-C", str(root), *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return result.stdout.strip()
