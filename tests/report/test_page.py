"""The page in a real browser loads nothing, shows everything, and prints nothing on the console."""
from __future__ import annotations

import re
import shutil

import pytest

from fedmpi.report import tables

pytestmark = pytest.mark.slow("a browser, and the runs of a report")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="there is no playwright here: pip install playwright")
    with sync_api.sync_playwright() as play:
        # In CI the user is root, which needs this option.
        started = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def visit(browser, report):
    """Open the page at a width; return it, its requests and its errors."""
    pages = []

    def visit(width: int):
        page, asked, said = browser.new_page(viewport={"width": width, "height": 900}), [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        # This is a safety net for busy machines.
        page.set_default_timeout(240_000)
        page.goto((report / "index.html").as_uri())
        pages.append(page)
        return page, asked, said
    yield visit
    for page in pages:
        page.close()


def test_it_loads_nothing_and_complains_of_nothing(visit, report):
    page, asked, said = visit(1200)
    images = page.evaluate("[...document.images].map(i => [i.complete, i.naturalWidth, i.alt])")
    assert len(images) == len(list(report.glob("*.svg"))) == 17
    assert all(complete and width > 0 and alt for complete, width, alt in images)
    outside = [url for url in asked if not url.startswith("data:") and url != (report / "index.html").as_uri()]
    assert said == [] and outside == []


def test_the_table_shows_every_cell(visit, results):
    page, *_ = visit(1200)
    shown = [[cell.inner_text().strip() for cell in row.locator("th, td").all()]
             for row in page.locator("#accuracy_best_on_test tbody tr").all()]
    table = tables.make_tables(results)[0]
    assert [row[0] for row in shown] == results.rows
    for row, (name, *cells) in zip(results.rows, shown, strict=True):
        texts = [text.replace("+-", "±") for c in table.columns for text in table.texts(row, c)]
        assert name == row and [text.rstrip("*") for text in cells] == texts and len(cells) == 6
    bold = page.locator("#accuracy_best_on_test strong").all_inner_texts()
    assert len(bold) >= 2 and all(re.fullmatch(r"\d+\.\d\d( ± \d+\.\d\d)?", text) for text in bold)
    assert "Kendall" in page.locator("#accuracy_best_on_test tfoot").inner_text()
    assert page.locator(".runs tbody tr").count() == len(results.runs)


def test_it_fits_a_phone(visit):
    page, *_ = visit(360)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_table_wider_than_a_phone_is_scrolled_by_keys_and_keeps_its_names_in_sight(visit):
    page, *_ = visit(360)
    table = "#accuracy_best_on_test"
    room, name = page.locator(f".wide:has({table})"), page.locator(f"{table} tbody th").first
    assert room.evaluate("e => e.scrollWidth > e.clientWidth")
    page.keyboard.press("Tab")
    label = "accuracy best on test"
    assert room.evaluate(f"e => e === document.activeElement && e.getAttribute('aria-label') === '{label}'")
    before = name.bounding_box()["x"]
    page.evaluate("() => { window.moved = new Promise(done => document.activeElement.onscroll = () => done(true)) }")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("() => window.moved") and room.evaluate("e => e.scrollLeft > 0")
    assert name.bounding_box()["x"] == before and name.bounding_box()["width"] < 180


def test_it_is_printed_whole(visit):
    page, *_ = visit(1200)
    page.emulate_media(media="print")
    # The size of A4 within margins of a centimetre.
    page.set_viewport_size({"width": 718, "height": 1000})
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    assert page.pdf(format="A4").startswith(b"%PDF")
