"""The page in a real browser: it opens without errors, and what can be clicked works."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'hadamem[dev]'")

from playwright.sync_api import sync_playwright

from hadamem.reports.content import Report, Section
from hadamem.reports.html import write_html

from .demo import EMPTY, EVIL, MEMORIES, TASKS, make_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, e.g. apt-get install chromium")

CURVES = "#item-curves-0"
SHOTS = os.environ.get("HADAMEM_SHOTS")      # a folder for pictures of the page, to look at


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_html(make_report(), tmp_path_factory.mktemp("page") / "index.html")


@pytest.fixture
def open_page(browser):
    """Opens a file; at the end there must have been no errors, and no request for anything else."""
    errors, requests, pages = [], [], []

    def start(path, width=1280):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(Path(path).as_uri())
        pages.append(page)
        return page

    yield start
    assert errors == []
    assert len([url for url in requests if not url.startswith("data:")]) == len(pages)
    for page in pages:
        page.close()


def shown(page, block):
    return page.eval_on_selector_all(f"{block} .one:not([hidden]) .series", "found => found.map((g) => g.dataset.label)")


def hover(page, block, x=0.5, y=0.5):
    plot = page.locator(f"{block} .one:not([hidden]) .plot")
    plot.scroll_into_view_if_needed()
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")      # a scroll event hides the tip
    box = plot.bounding_box()
    page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    page.locator("#tip").wait_for(state="visible")
    return page.locator("#tip").inner_text()


@pytest.mark.parametrize("width", [1280, 800, 400])
def test_it_opens_with_all_plots(open_page, path, width):
    page = open_page(path, width)
    figures = page.locator("figure.chart").count()
    assert page.locator("figure.chart .one:not([hidden]) svg[role=presentation]").count() == figures
    assert shown(page, CURVES) == [*MEMORIES, "paper, SHM"]
    assert page.locator(f"{CURVES} .one:not([hidden]) .band").count() == len(MEMORIES)
    assert page.evaluate("document.documentElement.scrollWidth") <= width            # nothing sticks out to the right
    assert page.locator("nav details[open]").count() == (1 if width == 1280 else 0)
    assert page.evaluate("window.hacked") is None
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/page-{width}.png", full_page=True)


@pytest.mark.parametrize("width", [1280, 800])
def test_texts_of_a_plot_do_not_overlap(open_page, path, width):
    page = open_page(path, width)
    assert page.evaluate("""() => [...document.querySelectorAll('figure.chart')].flatMap((figure) => {
        const texts = [...figure.querySelectorAll('.one:not([hidden]) .plot text:not([transform*=rotate])')];
        const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
        const meet = (p, q) => p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3;
        return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) => meet(p, q)).map(([b]) => `${figure.id}: ${a} / ${b}`));
    })""") == []


def test_hovering_shows_the_numbers(open_page, path):
    page = open_page(path)
    text = hover(page, CURVES)
    assert "env steps" in text
    figure = next(item for item in make_report().items if item.name == "curves-0")
    step = int(re.search(r"env steps: ([\d,]+)", text)[1].replace(",", ""))
    at = list(figure.series[0].x).index(step)
    for series in figure.series[:-1]:
        value, low = (float(f"{values[at]:.4g}") for values in (series.y, series.low))
        assert re.search(rf"{series.label}\n+{value:g}\n+\[{low:g}, ".replace("-", "\N{MINUS SIGN}"), text), (series.label, value, low)
    assert "paper, SHM" in text
    assert "failed: CUDA out of memory" not in text
    page.mouse.move(1, 1)
    assert not page.locator("#tip").is_visible()


def test_hovering_over_bars_points_maps_and_cells(open_page, path):
    page = open_page(path)
    assert TASKS[5] in hover(page, "#item-bars", 0.49)
    assert "gru" in hover(page, "#item-iqm", 0.16)
    assert "256" in hover(page, "#item-growth")
    assert re.search(r"row: \d+\ncolumn: \d+\nC: [\d.]+", hover(page, "#item-calibration", 0.3))
    assert "memory X: " in hover(page, "#item-improvement", 0.3)
    page.hover("#item-scores tbody tr:nth-child(1) td:nth-child(2)")
    assert "95 % interval" in page.locator("#tip").inner_text()
    assert re.search("✓|▲|▼", page.locator("#tip").inner_text())
    page.hover("#item-scores tbody tr:nth-child(8) td:nth-child(2)")
    assert "failed: CUDA out of memory" in page.locator("#tip").inner_text()


def test_the_keyboard_moves_the_read_out(open_page, path):
    page = open_page(path)
    page.focus("#item-growth .plot")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "sequence length T: 64" in page.locator("#tip").inner_text()
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()


def test_a_legend_hides_a_series_in_its_block_only(open_page, path):
    page = open_page(path)
    button = page.locator(f"{CURVES} .one:not([hidden]) .legend button[data-label=gru]")
    button.click()
    assert "gru" not in shown(page, CURVES)
    assert "gru" in shown(page, "#item-iqm")
    assert button.get_attribute("aria-pressed") == "false"
    assert "\ngru\n" not in hover(page, CURVES)
    page.select_option(f"{CURVES} select", "curves-2")
    assert "gru" not in shown(page, CURVES)                       # the choice holds for the other tasks
    page.locator(f"{CURVES} .one:not([hidden]) .legend button[data-label=gru]").click()
    assert "gru" in shown(page, CURVES)


def test_the_buttons_at_the_top_hide_a_memory_everywhere(open_page, path):
    page = open_page(path)
    blocks = [CURVES, "#item-bars", "#item-iqm", "#item-growth", "#item-comparison-iqm", "#item-comparison-profiles"]
    assert all("shm" in shown(page, block) for block in blocks)
    page.click("#toggles button[data-label=shm]")
    assert not any("shm" in shown(page, block) for block in blocks)
    assert all("gru" in shown(page, block) for block in blocks)
    assert "shm" not in page.locator("#item-iqm .plot").inner_text().split()      # nor its category
    page.select_option(f"{CURVES} select", "curves-5")
    assert "shm" not in shown(page, CURVES)
    page.locator("#item-iqm .legend button[data-label=shm]").click()              # a legend counts more than the top
    assert "shm" in shown(page, "#item-iqm")
    page.click("#toggles button[data-label=shm]")
    assert all("shm" in shown(page, block) for block in blocks)
    page.click("#show-none")
    assert "All series are hidden." in page.locator("#item-iqm .plot").inner_text()
    page.click("#show-all")
    assert shown(page, "#item-iqm") == MEMORIES


def test_the_select_box_switches_figures(open_page, path):
    page = open_page(path)
    before = page.locator(f"{CURVES} .one:not([hidden]) path.line").first.get_attribute("d")
    page.select_option(f"{CURVES} select", label=TASKS[7])
    assert page.locator(f"{CURVES} .one:not([hidden])").get_attribute("data-figure") == "curves-7"
    assert page.locator(f"{CURVES} .one:not([hidden]) path.line").first.get_attribute("d") != before
    assert page.locator(f"{CURVES} .one:not([hidden])").count() == 1


def test_tables_are_sorted_by_their_headings(open_page, path):
    page = open_page(path)
    table = next(item for item in make_report().items if item.name == "scores")
    values = {row[0]: row[1].value for row in table.rows}
    finished = [task for task in TASKS if values[task] is not None]
    tasks = lambda: page.locator("#item-scores tbody td:first-child").all_inner_texts()      # noqa: E731
    heading = page.locator("#item-scores th:nth-child(2) button")
    heading.click()
    assert tasks() == [*sorted(finished, key=lambda task: -values[task]), TASKS[7]]          # what is missing comes last
    heading.click()
    assert tasks() == [*sorted(finished, key=values.__getitem__), TASKS[7]]
    assert page.locator("#item-scores th:nth-child(2)").get_attribute("aria-sort") == "ascending"
    heading.click()
    assert tasks() == TASKS
    page.locator("#item-ranks th:nth-child(4) button").click()                               # "10 h" after "9 h"
    assert page.locator("#item-ranks tbody td:nth-child(4)").all_inner_texts() == [f"{3 + j} h" for j in range(10)]


def test_texts_of_users_are_shown_as_they_are(open_page, path):
    page = open_page(path)
    assert EVIL in page.locator("#section-6 h2").inner_text()
    hover(page, "#item-evil", 0.3)
    assert EVIL in page.locator("#tip").inner_text()
    page.hover("#item-evil-table tbody td:nth-child(2)")
    page.locator("#item-evil .legend button").first.click()
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize("report", EMPTY, ids=lambda report: report.title)
def test_reports_without_results_open(open_page, report, tmp_path):
    page = open_page(write_html(report, tmp_path / "index.html"))
    if report.title == "begun":
        assert page.locator("#item-f .plot").inner_text() == "No results yet."
        assert page.locator("#item-m .plot").inner_text() == "No results yet."
        assert "missing" in page.locator("#item-v").inner_text()


def test_a_large_report_stays_quick(open_page, path):
    """12 tasks x 10 memories x 200 points; a click redraws every figure of the page."""
    page = open_page(path)
    took = page.evaluate("""() => {
        const start = performance.now();
        document.querySelector('#toggles button[data-label=gru]').click();
        document.body.getBoundingClientRect();
        return performance.now() - start;
    }""")
    assert took < 1500                                    # milliseconds; about 100 on an idle machine


def test_a_narrower_window_redraws_the_plots(open_page, path):
    page = open_page(path)
    wide = page.locator(f"{CURVES} .one:not([hidden]) svg[role=presentation]").bounding_box()["width"]
    page.set_viewport_size({"width": 700, "height": 900})
    page.wait_for_function(f"document.querySelector('{CURVES} .one:not([hidden]) .plot svg').getBoundingClientRect().width < {wide}")


def test_links_to_other_files(open_page, tmp_path):
    report = Report("r", "", [Section("s", "", [make_report().items[0]])])
    page = open_page(write_html(report, tmp_path / "index.html", {"scores": ["tables/scores.csv"]}))
    assert page.locator(".files a").get_attribute("href") == "tables/scores.csv"
