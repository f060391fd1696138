"""membound from where it lies: nothing needs to be installed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def link() -> None:
    """Put the repository root on PYTHONPATH under its package name, for this process's children."""
    folder = ROOT / ".link"
    folder.mkdir(exist_ok=True)
    if not (folder / "membound").is_symlink():
        (folder / "membound").symlink_to("..")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def membound(*arguments: str) -> int:
    """Exit status of a command."""
    return subprocess.call([sys.executable, "-P", "-m", "membound.cli", *arguments])
