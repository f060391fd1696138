"""What the pages under docs/ show is there: commands, files, columns, code that runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pytest
from membound.analysis.export import export
from membound.analysis.loading import COLUMNS
from membound.analysis.report.head import FAILURES, MEANING
from membound.analysis.verdict import RANKED
from membound.cli import app
from membound.tests.generated import processes, record, run
from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
_SQL_WORDS = frozenset(
    [
        "select",
        "round",
        "median",
        "as",
        "from",
        "where",
        "and",
        "group",
        "by",
        "order",
        "desc",
        "count",
        "distinct",
    ]
)


def blocks(page: Path, language: str = "") -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    lines = re.findall(r"^membound ([a-z]+)(.*?)(?:#.*)?$", text, re.MULTILINE)
    return [[name, *re.findall(r"(?<![\w-])--?[a-z][a-z-]*", rest)] for name, rest in lines]


def strange_columns(sql: str) -> set[str]:
    """Words of a query that are neither SQL, a name it gives itself, nor a column of the table."""
    plain = re.sub(r"'[^']*'", "", sql)
    given = set(re.findall(r"\bAS (\w+)", plain))
    words = {word for word in re.findall(r"[a-z_]\w*", plain, re.IGNORECASE) if not word.isdigit()}
    return {w for w in words if w.lower() not in _SQL_WORDS} - given - COLUMNS.keys() - {"e9"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_shown_exists(page: Path) -> None:
    for name, *options in (c for block in blocks(page) for c in commands(block)):
        helped = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
        assert helped.exit_code == 0, name
        for option in options:
            assert option in helped.output, f"{name} {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_verdicts_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    table = text[text.index("## Verdicts") : text.index("## Fusion")]
    told: dict[str, str] = {}
    for names, ranked in re.findall(r"^\| (`.*?) \|.*\| (yes|no) \|$", table, re.MULTILINE):
        told |= dict.fromkeys(re.findall(r"`([^`]+)`", names), ranked)
    assert set(told) == {*MEANING, *RANKED, *FAILURES}
    assert {name for name, ranked in told.items() if ranked == "yes"} == set(RANKED)


def test_queries_name_columns_of_the_table() -> None:
    queries = blocks(ROOT / "docs" / "data.md", "sql")
    assert len(queries) == 2
    assert set().union(*map(strange_columns, queries)) == set()
    assert strange_columns("SELECT operation, gbps FROM 'x'") == {"gbps"}


def test_the_exported_table_has_what_the_first_query_asks_for(tmp_path: Path) -> None:
    wrong = record(operation="silu", status="failed", reason="no compiler")
    path = run(tmp_path, [*processes([0.001, 0.002, 0.003]), wrong])
    export([path], tmp_path / "measurements.parquet")
    table = pyarrow.dataset.dataset(tmp_path / "measurements.parquet")
    kept = table.to_table(
        filter=(pyarrow.dataset.field("status") == "ok") & pyarrow.dataset.field("dram_sized")
    ).to_pandas()
    rate = kept["traffic_bytes"].iloc[0] / kept["median_seconds"].median() / 1e9
    assert (len(kept), round(rate, 1)) == (3, 536.9)


def test_the_code_shown_is_python() -> None:
    for page in PAGES:
        for block in blocks(page, "python"):
            ast.parse(block)


def test_the_example_runs(tmp_path: Path) -> None:
    records = [
        *processes([0.001] * 3),
        *processes([0.0008] * 3, implementation="triton"),
        record(implementation="torch", status="wrong", reason="made up"),
    ]
    path = run(tmp_path, records)
    script = ROOT / "docs" / "best_of_each_layer.py"
    done = subprocess.run([sys.executable, script, path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    head, row = done.stdout.splitlines()
    assert head.split()[-1] == "gb_per_s"
    assert "triton" in row
    assert row.split()[-1].startswith("1342.")
