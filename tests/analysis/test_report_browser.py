"""The page in a browser as people use it: the Chromium of the system, and no network."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from membound.analysis.report import report
from membound.tests.analysis.made_up import everything
from membound.tests.generated import MIB, device, environment, run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PATIENCE = 300_000
"""Milliseconds: a busy machine is slow, and no failure."""
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
DESKTOP, PHONE = (1280, 900), (390, 844)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed here")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        # It makes a new profile for every launch and removes it afterwards.
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=list(OPTIONS), timeout=PATIENCE
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    path = run(folder, everything(), environment(device=device(l2_bytes=16 * MIB)))
    file = folder / "report.html"
    made = report([path], form="html", output=file)
    file.write_text(made.text, encoding="utf-8")
    return file


@dataclass
class Seen:
    """What a browser says about a page beyond showing it."""

    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


def opened(
    browser: Browser, file: Path, size: tuple[int, int] = DESKTOP, dark: bool = False
) -> tuple[Page, Seen]:
    page = browser.new_page(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
    )
    page.set_default_timeout(PATIENCE)
    seen = Seen()
    page.on("console", lambda message: seen.said.append(message.text))
    page.on("pageerror", lambda error: seen.said.append(str(error)))
    page.on("request", lambda request: seen.asked.append(request.url))
    page.goto(file.as_uri())
    return page, seen


def test_what_is_forbidden_is_seen(browser: Browser, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.html"
    wrong.write_text("<img src='http://127.0.0.1:9/x'><script>console.log(1); nothing()</script>")
    page, seen = opened(browser, wrong)
    assert "http://127.0.0.1:9/x" in seen.asked
    assert any("nothing is not defined" in line for line in seen.said)
    assert "1" in seen.said
    page.close()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_it_opens_in_silence_and_asks_for_nothing(
    browser: Browser, file: Path, size: tuple[int, int], dark: bool
) -> None:
    page, seen = opened(browser, file, size, dark)
    assert (seen.said, seen.asked) == ([], [file.as_uri()])
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
    # Only tables and figures scroll sideways, not the page.
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    page.close()


def test_every_figure_has_marks_inside_its_frame(browser: Browser, file: Path) -> None:
    page, _ = opened(browser, file)
    figures = page.locator("figure").all()
    assert len(figures) >= 15
    for figure in figures:
        marks = figure.locator("svg [aria-label]:not([aria-roledescription=axis])")
        assert marks.count() > 0, figure.get_attribute("id")
        boxes = figure.evaluate(
            """figure => {
                const frame = figure.querySelector("svg").getBoundingClientRect();
                return [...figure.querySelectorAll("svg text")].map(text => {
                    const box = text.getBoundingClientRect();
                    return [box.left - frame.left, frame.right - box.right,
                            box.top - frame.top, frame.bottom - box.bottom];
                });
            }"""
        )
        assert min(min(box) for box in boxes) > -25, figure.get_attribute("id")
    page.close()


def test_tables_filter_and_sort(browser: Browser, file: Path) -> None:
    page, _ = opened(browser, file)
    table = page.locator(".table", has=page.get_by_role("heading", name="Achieved bandwidth, cold"))
    rows = table.locator("tbody tr:visible")
    every = rows.count()
    table.locator("input").fill("rms_norm  BWD triton")
    texts = rows.all_inner_texts()
    assert 0 < len(texts) < every
    assert all("rms_norm" in text and "bwd" in text and "triton" in text for text in texts)
    assert table.locator(".count").inner_text() == f"{len(texts)} of {every}"
    table.locator("input").fill("")
    assert rows.count() == every

    header = table.get_by_role("button", name="bytes")
    for order, sign in (("ascending", 1), ("descending", -1)):
        header.click()
        assert table.locator("th[aria-sort]").get_attribute("aria-sort") == order
        sizes = [amount(text) for text in rows.locator("td:nth-child(6)").all_inner_texts()]
        assert sizes == sorted(sizes, key=lambda value: sign * value)
    table.get_by_role("button", name="GB/s").click()
    rates = rows.locator("td:nth-child(7)").all_inner_texts()
    known = [text for text in rates if text != "–"]
    assert rates == [*known, *["–"] * (len(rates) - len(known))]
    assert [amount(text) for text in known] == sorted(map(amount, known))
    page.close()


def amount(text: str) -> float:
    """`67.1 MB` in bytes, or the figure alone."""
    figure, _, unit = text.replace(",", "").partition(" ")
    return float(figure) * {"MB": 1e6, "GB": 1e9}.get(unit, 1.0)


def test_a_mark_says_what_it_stands_for(browser: Browser, file: Path) -> None:
    page, _ = opened(browser, file)
    mark = page.locator("#bandwidth-1 svg [aria-label*='silu/forward/cuda']").first
    mark.hover()
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    assert re.match(r"silu/forward/cuda/bfloat16/\S+: [\d,]+ GB/s", tip.inner_text())
    page.close()


def test_it_prints_with_everything_unfolded(browser: Browser, file: Path) -> None:
    page, _ = opened(browser, file, dark=True)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert printed.count(b"/Type /Page\n") > 5
    page.close()
