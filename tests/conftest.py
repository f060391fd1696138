"""What the tests say at their end."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many inputs each fuzzing target ran on (tests/results/test_hostile.py)."""
    for report in terminalreporter.getreports("passed"):
        for name, value in getattr(report, "user_properties", ()):
            if name == "fuzzed" and report.when == "call":
                terminalreporter.write_line(f"fuzzed {value}")
