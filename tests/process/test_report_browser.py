"""The report in a real browser: it opens, the plots are there, nothing is loaded and nothing complained about."""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripted_workplace import ScriptedWorkplace

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDED = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"]
"""As root, and in a container without a GPU or much /dev/shm, it starts in no other way."""
QUIET = ["--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
"""Keeps it off the network."""
PATIENCE_MS = 120_000
"""Two slow cores with other tests on them may take long."""

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH"),
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="playwright is not installed"),
]


@pytest.fixture(scope="module")
def report_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run with a crash, a quarantined row and an interruption, hostile texts in all of them."""
    hostile = "<script>document.title = 'taken over'</script>"
    texts = [f"{hostile} {number}" for number in range(12)]
    place = ScriptedWorkplace.make(tmp_path_factory.mktemp("browser") / "place", texts, chunk__size=4)
    place.lay(texts[1], "oom")
    place.lay(texts[5], "damage!")
    place.write_config("scripted:make", chunk__size=4, recovery__attempts=1)
    place.lay(texts[9], "value_error!")
    assert place.run_here().returncode == 75
    place.lift(texts[5])
    assert place.run_here().returncode == 3
    return place.workdir / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*NEEDED, *QUIET], timeout=PATIENCE_MS)
        yield browser
        browser.close()


OVERLAPS = """() => {
  const found = [];
  for (const chart of document.querySelectorAll('figure')) {
    const frame = chart.getBoundingClientRect();
    const shown = [...chart.querySelectorAll('span, figcaption, .note')].filter(each => each.getClientRects().length);
    const boxes = shown.map(each => [each.textContent, each.getBoundingClientRect()]);
    boxes.forEach(([words, box], at) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
          || box.bottom > frame.bottom + 1) found.push(`${words} is clipped`);
      for (const [others, other] of boxes.slice(at + 1))
        if (box.left < other.right - 1 && other.left < box.right - 1 && box.top < other.bottom - 3
            && other.top < box.bottom - 3) found.push(`${words} over ${others}`);
    });
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1100])
def test_report_in_a_browser(report_path: Path, browser: Any, scheme: str, width: int) -> None:
    """It fits the window, has its plots with labels that do not overlap, and asks for nothing but itself."""
    said: list[str] = []
    asked: list[str] = []
    with browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme) as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(report_path.as_uri())

        assert asked == [report_path.as_uri()]
        assert said == []
        assert page.title().startswith("complete, but ")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        titles = page.eval_on_selector_all("figcaption", "all => all.map(each => each.textContent)")
        assert titles[:2] == ["Throughput", "Attempts"]
        visible = page.eval_on_selector_all("svg", "all => all.filter(each => each.getClientRects().length).length")
        assert visible == len(titles)
        assert page.locator("svg .line.s1").count() >= 2
        assert page.evaluate(OVERLAPS) == []
        red, green, blue = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
        assert (red + green + blue > 384) == (scheme == "light")
