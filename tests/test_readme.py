"""What the README shows is real: its tables are a committed run's, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from membound.analysis.report import report
from membound.cli import app
from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"<!-- from (results/\S+) -->\n(.*?)<!-- end -->", re.DOTALL)


def strangers(readme: str) -> list[str]:
    """Lines of its blocks that the report of the run they name does not have."""
    missing = []
    for run, block in BLOCK.findall(readme):
        shown = set(report([ROOT / run], form="markdown").text.splitlines())
        missing += [line for line in block.splitlines() if line.strip() and line not in shown]
    return missing


def test_every_table_is_that_of_a_committed_run() -> None:
    assert len(BLOCK.findall(README)) >= 2
    assert strangers(README) == []


def test_a_figure_that_was_not_measured_is_seen() -> None:
    (_, block), *_ = BLOCK.findall(README)
    row = next(line for line in block.splitlines() if re.search(r"\d\.\d", line))
    made_up = re.sub(r"\d\.\d", "9.9", row, count=1)
    assert made_up in strangers(README.replace(row, made_up))


def commands() -> list[list[str]]:
    lines = re.findall(r"^membound ([a-z]+)(.*?)(?:#.*)?$", README, re.MULTILINE)
    return [[name, *re.findall(r"--[a-z-]+", rest)] for name, rest in lines]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_and_option_shown_exists(command: list[str]) -> None:
    name, *options = command
    helped = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert helped.exit_code == 0
    for option in options:
        assert option in helped.output


def test_make_targets_shown_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    shown = set(re.findall(r"\bmake ([a-z]+)", README))
    assert {"bench", "test"} <= shown
    for target in shown:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
