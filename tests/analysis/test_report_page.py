"""The page, its figures and their Markdown: complete, sound whatever is in a record, small."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from membound.analysis.figures.bars import Bar, bars
from membound.analysis.figures.figure import Figure, page_svg, svg
from membound.analysis.loading import read
from membound.analysis.report import report
from membound.analysis.report.__main__ import main
from membound.analysis.report.answer import answer
from membound.analysis.report.content import sections
from membound.analysis.report.ratios import savings
from membound.analysis.report.section import Folded, Section
from membound.analysis.report.told import Told, best, tell
from membound.analysis.tables import escaped
from membound.cli import app
from membound.results.record import Peak
from membound.tests.analysis.made_up import MadeUp, everything, many
from membound.tests.generated import MIB, device, environment, processes, record, run
from typer.testing import CliRunner

HOSTILE = '<script>alert(\'x\')</script>"onload="y" | \x1b[31m\u202e{{ 7*7 }} ]]>'
TITLES = (
    "Bandwidth by operation and implementation",
    "Fused against unfused",
    "Bandwidth against size",
    "Roofline",
    "Smaller types",
    "Forward against backward",
    "Implementations head to head",
    "Kernel ladders: the same kernel, step by step",
    "Noise",
    "How it was measured",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    return run(folder, everything(), environment(device=device(l2_bytes=16 * MIB)))


@pytest.fixture(scope="module")
def told(whole: Path) -> Told:
    return tell(read([whole]))[0]


@pytest.fixture(scope="module")
def found(told: Told) -> list[Section]:
    return sections([told], None)


def figures(found: list[Section]) -> list[Figure]:
    return [part for one in found for part in one.parts if isinstance(part, Figure)]


class Page(HTMLParser):
    """Tags that are open, whatever would load something, and the text."""

    VOID = ("meta", "input", "br", "path", "line", "rect")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.scripts = 0
        self.handlers: list[str] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.loads += [f"{tag} {v}" for k, v in attrs if k in ("src", "srcset", "xlink:href")]
        self.loads += [f"{tag} {v}" for k, v in attrs if k == "href" and tag != "a"]
        self.handlers += [k for k, _ in attrs if k.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def page(whole: Path) -> Page:
    return Page(html(whole))


def html(path: Path) -> str:
    return report([path], form="html").text


def test_the_checker_of_pages_sees_what_it_is_for() -> None:
    page = Page(
        '<p onload="x"><img src="http://a/b"></p><script></script>'.replace("<img", "<input")
    )
    assert (page.handlers, page.loads, page.scripts) == (["onload"], ["input http://a/b"], 1)
    with pytest.raises(AssertionError):
        Page("<p><b></p></b>")


def test_every_section_is_there_in_its_order(found: list[Section]) -> None:
    assert [section.title for section in found][1:] == list(TITLES)
    assert found[0].title.startswith("NVIDIA Generated")


def test_every_figure_is_valid_and_says_what_it_shows_and_what_follows(
    found: list[Section],
) -> None:
    drawn = figures(found)
    assert len(drawn) >= 15
    assert len({figure.name for figure in drawn}) == len(drawn)
    for figure in {re.sub(r"-\d+$", "", figure.name): figure for figure in drawn}.values():
        figure.draw().to_dict()  # checked against Vega-Lite's schema
        for words in (figure.shows, figure.concludes):
            assert words.endswith(".")
            assert len(words.split()) > 3
            assert not re.search(r"\bnan\b|\bNone\b|\binf\b", words)


def test_a_chart_that_is_none_is_refused() -> None:
    with pytest.raises(Exception, match="title"):
        bars([Bar("a", "b", 1.0, "c")], unit=7).to_dict()  # type: ignore[arg-type]


def test_page_and_markdown_say_the_same(whole: Path, page: Page, found: list[Section]) -> None:
    markdown = report([whole], form="markdown").text
    assert page.open == []
    for figure in figures(found):
        for words in (figure.title, figure.shows, figure.concludes):
            assert words in page.text
            assert escaped(words) in markdown
    for one in found:
        for part in one.parts:
            table = part.table if isinstance(part, Folded) else part
            for row in getattr(table, "rows", ()):
                assert all(" ".join(cell.split()) in page.text for cell in row)
    assert "measurements.jsonl" in page.text


def test_the_page_loads_nothing(page: Page) -> None:
    assert (page.loads, page.handlers, page.scripts) == ([], [], 1)


def test_figures_are_written_as_svg_and_png(tmp_path: Path) -> None:
    few = run(tmp_path, processes([0.001, 0.0011, 0.0012]))
    made = report([few], form="markdown", figures=tmp_path / "figures", output=tmp_path / "r.md")
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"bandwidth-1.svg", "bandwidth-1.png"} <= names
    assert (tmp_path / "figures" / "bandwidth-1.png").read_bytes().startswith(b"\x89PNG")
    assert "](figures/bandwidth-1.svg)" in made.text
    for path in (tmp_path / "figures").glob("*.svg"):
        ElementTree.fromstring(path.read_text(encoding="utf-8"))


def test_hostile_text_is_shown_and_not_interpreted(tmp_path: Path) -> None:
    env = environment(
        device=device(name=HOSTILE),
        warnings=[HOSTILE],
        peak=None,
        peak_reason=HOSTILE,
        host={HOSTILE: HOSTILE},
        command=["membound", HOSTILE],
    )
    records = [
        *processes([0.001] * 3),
        *processes([0.002] * 3, operation=HOSTILE, implementation=HOSTILE),
        *processes([0.003] * 3, operation=HOSTILE, implementation="cuda", variant=HOSTILE),
        record(operation="other", status="failed", reason=HOSTILE),
    ]
    page = html(run(tmp_path, records, env))
    parsed = Page(page)
    assert (parsed.loads, parsed.handlers, parsed.scripts, parsed.open) == ([], [], 1, [])
    assert "<script>alert('x')</script>" in parsed.text
    assert "{{ 7*7 }}" in parsed.text
    for drawing in re.findall(r"<svg .*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(drawing)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_any_number_of_cases(tmp_path: Path, count: int) -> None:
    records = [*processes([0.001]), *processes([0.002], operation="silu")][:count]
    made = report([run(tmp_path, records)], form="html")
    page = Page(made.text)
    assert page.open == []
    assert "NVIDIA Generated" in page.text
    assert ("No case was measured." in page.text) == (count == 0)
    assert made.exit_code == (count == 0)


def test_two_thousand_cases_are_under_three_megabytes(tmp_path: Path) -> None:
    path = run(tmp_path, [*MadeUp().copies(), *many(2000, samples=5)])
    page = html(path)
    assert len(page.encode()) < 3_000_000
    assert page.count("<tr>") > 2000
    assert "more layers: in the table below." in page


def test_all_failed(tmp_path: Path) -> None:
    failed = [
        record(operation=f"op{i}", status="failed", reason="no compiler <here>") for i in range(9)
    ]
    path = run(tmp_path, failed)
    page = Page(html(path))
    assert "Not ranked, of 9 cases: 9 failed" in page.text
    assert "9 holes: 9 failed." in page.text
    assert "no compiler <here>" in page.text
    assert not re.search(r"\b0(\.0+)? GB/s", page.text)


def test_an_unknown_peak_is_no_line_and_no_percentage(tmp_path: Path) -> None:
    env = environment(peak=None, peak_reason="GB99 is in no sheet")
    path = run(tmp_path, [*MadeUp().copies()], env)
    (figure, *_) = figures(sections(tell(read([path])), None))
    assert "the peak is unknown" in figure.shows
    assert "strokeDash" not in str(figure.draw().to_dict())
    assert "Of the peak" not in html(path)


def test_one_process_has_no_interval_and_no_noise(tmp_path: Path) -> None:
    path = run(tmp_path, processes([0.001]))
    assert "± needs three processes" in html(path)
    assert "Noise" not in [section.title for section in sections(tell(read([path])), None)]


def test_five_devices_stand_side_by_side(tmp_path: Path) -> None:
    for number in range(5):
        peak = Peak(gbps=1000.0 * (number + 1), source="sheet", provenance="generated")
        made = MadeUp(700.0 * (number + 1), number)
        layer = [*made.copies(), *made.case("silu", "activation", 0.5, 1 << 31, made.gb_per_s)]
        run(tmp_path, layer, environment(device=device(name=f"GPU {number}"), peak=peak),
            minute=number)  # fmt: skip
    found = sections(tell(read([tmp_path])), None)
    (side,) = (section for section in found if section.title == "Devices side by side")
    absolute, relative = (part for part in side.parts if isinstance(part, Figure))
    assert "GPU 4 is fastest: " in "".join(absolute.concludes.partition("GPU 4")[1:])
    assert "own peak" in relative.shows
    assert all(f"GPU {number} " in relative.concludes for number in range(5))
    names = [figure.name for figure in figures(found)]
    assert len(set(names)) == len(names)


def test_what_a_cache_served_is_neither_drawn_nor_counted(tmp_path: Path) -> None:
    fast = processes([0.0001] * 3, operation="silu", family="activation")
    path = run(tmp_path, [*processes([0.001] * 3), *fast])
    (told,) = tell(read([path]))
    silu = [row for row in told.rows if row.operation == "silu"]
    assert silu[0].verdict == "above-peak"
    assert best(silu) is None
    assert "none was measured beside one" in answer(told)[0]
    (figure, *_) = figures(sections([told], None))
    drawn = svg(figure)
    assert drawn.count('aria-roledescription="bar"') == 1
    assert "above-peak: 10,737 GB/s beyond the peak" in drawn


@pytest.mark.parametrize(
    ("unstable", "said"), [([8, 9, 14], "in doubt for all 1"), ([16, 30, 40], "50 %")]
)
def test_the_fastest_of_a_layer_is_not_named_while_it_is_in_doubt(
    tmp_path: Path, unstable: list[float], said: str
) -> None:
    silu = {"operation": "silu", "family": "activation"}
    steady = processes([0.002] * 3, implementation="torch", **silu)
    shaky = processes([time * 1e-4 for time in unstable], **silu)
    (told,) = tell(read([run(tmp_path, [*processes([0.001] * 3), *steady, *shaky])]))
    assert {row.verdict for row in told.rows if row.operation == "silu"} == {
        "below-ceiling",
        "unstable",
    }
    assert said in answer(told)[0]


def test_more_than_a_ceiling_is_no_achievement(tmp_path: Path) -> None:
    faster = processes([0.0008] * 3, operation="silu", family="activation")
    (told,) = tell(read([run(tmp_path, [*processes([0.001] * 3), *faster])]))
    assert answer(told)[0].startswith("Layers reach ≥100 % of what plain copies reached")


def test_smaller_types_are_compared_row_by_row(told: Told) -> None:
    pairs = list(savings(told.rows))
    assert {pair.narrow.dtype for pair in pairs} == {"bfloat16", "float8"}
    for pair in pairs:
        times = 2 if pair.narrow.dtype == "bfloat16" else 4
        assert pair.predicted == pytest.approx(times, rel=0.01)
        assert pair.measured == pytest.approx(times, rel=0.2)


def test_clip_paths_of_two_figures_stay_apart() -> None:
    drawn = '<svg><clipPath id="clip0"/><g clip-path="url(#clip0)"/></svg>'
    assert (
        page_svg(drawn, "a") == '<svg><clipPath id="a-clip0"/><g clip-path="url(#a-clip0)"/></svg>'
    )


def test_numbers_are_shortened_and_words_left_alone() -> None:
    drawn = '<path aria-label="x 1.23456: v" d="M0.123456,7.9999L1.5,2"/><text>3.14159</text>'
    short = page_svg(drawn, "a")
    assert 'd="M0.12,7.99L1.5,2"' in short
    assert ">3.14159<" in short


def test_the_script_writes_a_page(tmp_path: Path) -> None:
    few = run(tmp_path, processes([0.001]))
    assert main([str(few), "--output", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert f'href="{few.name}/measurements.jsonl"' in page


def test_the_front_door_writes_a_page_and_refuses_a_contradiction(tmp_path: Path) -> None:
    few = str(run(tmp_path, processes([0.001])))
    page = tmp_path / "r.html"
    done = CliRunner().invoke(app, ["report", few, "-o", str(page)])
    assert (done.exit_code, done.output) == (0, f"wrote {page}\n")
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    done = CliRunner().invoke(app, ["report", few, "--markdown", "-o", str(page)])
    assert done.exit_code == 2
    assert "contradicts" in done.output
    for form in ("r.pdf", "r.html.gz"):
        done = CliRunner().invoke(app, ["report", few, "-o", str(tmp_path / form)])
        assert (done.exit_code, done.output.count("\n")) == (2, 1)
        assert "name a file ending in .html, .md, .txt" in done.output
        assert not (tmp_path / form).exists()
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = CliRunner().invoke(app, ["report", few, "--figures", str(blocked)])
    assert (done.exit_code, done.output.count("\n")) == (2, 1)


def test_a_crowd_of_points_is_thinned_and_says_so(tmp_path: Path) -> None:
    crowd = [
        one
        for number in range(501)
        for dtype, seconds in (("float32", 0.001), ("bfloat16", 0.0008))
        for one in processes([seconds], operation=f"op{number}", dtype=dtype)
    ]
    found = sections(tell(read([run(tmp_path, crowd)])), None)
    (figure,) = (figure for figure in figures(found) if figure.name == "types")
    assert "of 501 pairs" in figure.shows
    assert figure.shows.endswith("One in 2 is drawn.")
    assert svg(figure).count('aria-label="op') == 251
