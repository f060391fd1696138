"""What all tests share: a thread each, nothing looked through twice, order, and last words."""

from __future__ import annotations

import gc
import os

import pytest

# As many workers as cores already: threads of each would spin for one another's cores. Read when
# torch is imported, which is before anything that pytest calls.
os.environ.setdefault("OMP_NUM_THREADS", "1")

LONGEST = [
    f"tests/{file}.py"
    for file in (
        "kernels/test_emulated", "kernels/test_cpu", "kernels/test_cubins", "kernels/test_torch",
        "kernels/test_triton", "kernels/test_numba", "setup/test_runner", "test_cli",
        "bench/test_faults", "bench/test_ab", "kernels/test_emulated_large",
        "kernels/test_own_kernels", "kernels/test_cupy",
    )
]  # fmt: skip
"""The files that take longest, begun first so that no worker is left with one at the end."""


def pytest_collection_finish() -> None:
    gc.freeze()  # what was collected stays: no use in looking through it again and again


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(LONGEST)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many inputs each fuzzing target ran on (tests/results/test_hostile.py)."""
    for report in terminalreporter.getreports("passed"):
        for name, value in getattr(report, "user_properties", ()):
            if name == "fuzzed" and report.when == "call":
                terminalreporter.write_line(f"fuzzed {value}")
