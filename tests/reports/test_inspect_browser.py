"""The page in a real browser: it draws, moves through time, and its choices change what is drawn. Needs chromium and playwright."""

import shutil

import numpy as np
import pytest

from hadamem.reports.inspect import write_page

from .test_inspect import make_recording

sync_api = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the browser tests need chromium: apt-get install chromium")
pytest.importorskip("gymnasium")

NAME = "popgym/RepeatPreviousEasy"
INK = """name => {      // how many colours a canvas has
  const canvas = document.querySelector(`canvas[data-figure="${name}"]`);
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const found = new Set();
  for (let i = 0; i < data.length; i += 4) if (data[i + 3]) found.add((data[i] << 16) + (data[i + 1] << 8) + data[i + 2]);
  return found.size;
}"""
PIXELS = """name => document.querySelector(`canvas[data-figure="${name}"]`).toDataURL()"""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(browser, tmp_path_factory):
    """open(recording, width) -> a page that is drawn. Fails on errors in the console and on requests beyond the file itself."""
    folder, problems, count = tmp_path_factory.mktemp("pages"), [], iter(range(100))

    def open_page(recording, width=1280):
        path = write_page(recording, folder / f"{next(count)}.html")
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(("file:", "data:")) else problems.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]", timeout=20_000)
        return page

    yield open_page
    assert problems == []


@pytest.fixture(scope="module")
def played():
    """played(memory): a recording of an untrained agent with it."""
    from hadamem.view.record import record

    from ..training.test_evaluate import policy_for

    return lambda memory: record(policy_for(NAME, memory=memory, memory_size=12, memory_output_size=6), NAME, max_steps=14)


@pytest.fixture(scope="module")
def toy(pages):
    return pages(make_recording(T=40, side=8))


def figures(page):
    return page.eval_on_selector_all("canvas[data-figure]", "list => list.map(c => c.dataset.figure)")


@pytest.mark.parametrize(("memory", "wanted"), [
    ("shm", {"M", "C", "U", "Cells by C", "shares of C", "eta", "h", "Gradient reach", "Product of C"}),
    ("gru", {"h", "z", "r", "shares of z", "Gradient reach", "Product of z"}),
    ("gpt2", {"attention 1", "attention 1 now", "Gradient reach"}),
    ("dnc", {"M", "links", "usage", "write weights", "read weights 1", "read weights 2", "Product of C"}),
    ("mlstm", {"M", "U", "f", "h"}),
    ("s6", {"S", "A", "Delta"}),
])
def test_everything_is_drawn(memory, wanted, pages, played):
    page = pages(played(memory))
    found = figures(page)
    assert wanted <= set(found)
    assert len(found) == len(set(found))
    assert {"Reward", "Return and value", "action probabilities", "y"} <= set(found)
    page.keyboard.press("End")
    for name in found:
        assert page.evaluate(INK, name) > 3, f"{name} is empty"
    assert page.locator("#frame").evaluate("image => image.naturalWidth") > 100
    assert not page.locator("#problem").is_visible()
    page.close()


def test_no_memory(pages, played):
    page = pages(played("none"))
    assert page.get_by_text("This agent has no memory").is_visible()
    assert set(figures(page)) == {"Reward", "Return and value", "action probabilities"}
    page.close()


def wait_until(page, condition):
    """Poll from here: the page allows no eval of its own."""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(30)
    raise AssertionError(f"never true: {condition}")


def step_of(page):
    return int(page.locator("#now").inner_text().split()[1])


def test_slider_and_keys(toy):
    before = toy.evaluate(PIXELS, "M")
    toy.locator("#step").fill("7")
    assert step_of(toy) == 7
    assert toy.locator("#caption").inner_text() == "step 7"
    assert toy.evaluate(PIXELS, "M") != before
    for key, want in (("ArrowRight", 8), ("ArrowLeft", 7), ("Shift+ArrowRight", 17), ("End", 39), ("ArrowRight", 39), ("Home", 0),
                      ("ArrowLeft", 0)):
        toy.keyboard.press(key)
        assert step_of(toy) == want
        assert toy.locator("#step").input_value() == str(want)


def test_play_and_pause(toy):
    toy.keyboard.press("Home")
    toy.locator("#speed").select_option("10")      # slow enough that the end is far when the next click comes
    toy.locator("#play").click()
    assert toy.locator("#play").inner_text() == "Pause"
    wait_until(toy, "chosen.step > 3")
    toy.locator("#play").click()
    assert toy.locator("#play").inner_text() == "Play"
    stopped = step_of(toy)
    toy.wait_for_timeout(150)
    assert step_of(toy) == stopped
    toy.locator("#speed").select_option("100")
    toy.locator("body").press("Space")
    wait_until(toy, "chosen.step === 39 && !chosen.playing")
    assert toy.locator("#play").inner_text() == "Play"
    toy.locator("#speed").select_option("10")
    toy.locator("#play").click()                # from the end it starts again
    wait_until(toy, "chosen.step < 39")
    toy.locator("#play").click()
    assert not toy.evaluate("chosen.playing")


def test_clicking_on_a_plot_goes_to_that_step(toy):
    toy.keyboard.press("Home")
    canvas = toy.locator('canvas[data-figure="eta"]')
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] / 2, "y": box["height"] / 2})
    assert 17 <= step_of(toy) <= 22


def test_choices_change_what_is_drawn(toy):
    toy.locator("#step").fill("5")
    for choice, value, figure in (("#scale", "whole", "M"), ("#scale", "log", "h"), ("#scale", "step", "h"), ("#scale", "auto", "h"),
                                  ("#epsilon", "4", "Cells by C"), ("#relative", "1", "Gradient reach")):
        before = toy.evaluate(PIXELS, figure)
        toy.locator(choice).select_option(value)
        assert toy.evaluate(PIXELS, figure) != before, (choice, value)


def test_heads_can_be_chosen(pages, played):
    page = pages(played("gpt2"))
    page.keyboard.press("End")
    before = page.evaluate(PIXELS, "attention 1")
    page.locator("#head").select_option("2")
    assert page.evaluate(PIXELS, "attention 1") != before
    page.close()


def test_pointing_reads_numbers(toy):
    recording = make_recording(T=40, side=8)
    toy.locator("#step").fill("5")
    canvas = toy.locator('canvas[data-figure="M"]')
    canvas.hover(position={"x": 34, "y": 8})
    text = canvas.locator("xpath=..").locator(".readout").inner_text()
    assert text.startswith("row 0, column 0: ")
    value = float(text.rpartition(" ")[2].replace("−", "-"))
    assert value == pytest.approx(recording.traces[0].values[5, 0, 0], rel=0.03, abs=0.02)


def test_bytes_become_the_numbers_they_were(toy):
    """The script's `valueAt` against the recording."""
    recording = make_recording(T=40, side=8)
    for n in (0, 1):
        found = toy.evaluate(f"Array.from({{length: 64}}, (_, i) => valueAt(DATA.traces[{n}].map, 11, i, 64))")
        values = recording.traces[n].values[11].ravel()
        np.testing.assert_allclose(found, values, atol=0.01 * np.abs(values - n).max())


@pytest.mark.parametrize("width", [1280, 1440, 800])
def test_nothing_is_wider_than_the_window(width, pages, played):
    page = pages(played("shm"), width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_resizing_draws_again(pages):
    page = pages(make_recording(T=12))
    before = page.evaluate("document.querySelector('canvas[data-figure=eta]').width")
    page.set_viewport_size({"width": 1000, "height": 700})
    wait_until(page, f"document.querySelector('canvas[data-figure=eta]').width < {before}")
    page.close()


def test_an_old_browser_is_told(pages, browser, tmp_path):
    path = write_page(make_recording(), tmp_path / "page.html")
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(path.as_uri())
    page.wait_for_selector("#problem:not([hidden])")
    assert "too old" in page.locator("#problem").inner_text()
    page.close()


@pytest.mark.parametrize("T", [1, 2])
def test_very_short_episodes(T, pages):
    page = pages(make_recording(T=T))
    page.keyboard.press("ArrowRight")
    assert step_of(page) == T - 1
    page.close()


def test_numbers_that_are_not_finite(pages):
    recording = make_recording(T=6)
    recording.traces[0].values[3:] = np.inf
    recording.traces[2].values[2] = np.nan
    recording.triangles[0].values[5, 0] = np.inf
    page = pages(recording)
    page.keyboard.press("End")
    assert page.evaluate(INK, "M") > 1
    page.close()
