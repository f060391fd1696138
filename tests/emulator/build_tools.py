"""The compiler of the emulator."""

from __future__ import annotations

import functools
import os
import subprocess

COMPILER = os.environ.get("CXX", "g++")


@functools.cache
def compiler_version() -> str:
    return _ask("--version").partition("\n")[0]


@functools.cache
def runtime_of_sanitizer() -> str:
    """The library that has to be loaded before any other in a process that loads ours."""
    return _ask("-print-file-name=libasan.so")


def _ask(question: str) -> str:
    done = subprocess.run([COMPILER, question], capture_output=True, text=True, check=True)
    return done.stdout.strip()
