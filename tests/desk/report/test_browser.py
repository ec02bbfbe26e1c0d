"""The page in a real browser: it fits, has two themes, and runs no script."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from agentic_trading.desk.report.record import RunOnRecord
from tests.browser import Scheme, chromium, opened
from tests.desk.report.recorded import page_html
from tests.desk.report.test_page import HOSTILE

pytestmark = pytest.mark.timeout(180)  # whole sessions are run, and a browser is started

SCHEMES: tuple[Scheme, Scheme] = ("light", "dark")
NAMES = ["recorded", "faults", "two symbols", "portfolio"]
CUT = """
[...document.querySelectorAll('h1, h2, h3, p, dt, dd, th, td, li, code, figcaption')].filter(each => {
  const box = each.getBoundingClientRect();
  return box.width && getComputedStyle(each.closest('thead') || each).position !== 'absolute'
    && (each.scrollWidth > each.clientWidth + 1 && each.clientWidth || box.right > window.innerWidth + 1);
}).map(each => each.tagName + ': ' + each.textContent.slice(0, 60))
"""
"""The elements whose text is wider than their box."""
OVERLAPPING = """
[...document.querySelectorAll('svg.chart')].filter(svg => svg.getBoundingClientRect().width).flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(each => [each.textContent, each.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], n) => boxes.slice(n + 1).filter(([, b]) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3
  ).map(([other]) => one + ' over ' + other));
})
"""
"""The labels of charts that overlap."""
CONTRAST = """
(() => {
  const light = text => {
    const parts = text.match(/[\\d.]+/g).slice(0, 3).map(value => {
      const share = value / 255;
      return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ground = each => {
    for (let node = each; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (!color.endsWith(', 0)')) return color;
    }
  };
  return [...document.querySelectorAll('h1, h3, p, dt, dd, th, td, li, code, a, svg text')].map(each => {
    const style = getComputedStyle(each);
    const [a, b] = [light(each.tagName === 'text' ? style.fill : style.color), light(ground(each))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }).reduce((least, each) => Math.min(least, each));
})()
"""
"""The least contrast of a text to its ground, by WCAG 2.2."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return a browser for the tests of this file."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def pages(runs: dict[str, RunOnRecord], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the files of the pages of four sessions, by name."""
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, run in runs.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(page_html(run), encoding="utf-8")
    return found


def ground(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [320, 700, 1200])
@pytest.mark.parametrize("name", NAMES)
def test_page_fits_its_screen(
    name: str, width: int, scheme: Scheme, browser: Browser, pages: dict[str, Path]
) -> None:
    with opened(browser, pages[name], width=width, scheme=scheme) as found:
        assert found.complaints == []
        assert not found.is_too_wide
        assert found.page.evaluate(CUT) == []
        assert found.page.evaluate(OVERLAPPING) == []


def test_page_at_double_text_size_fits(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["faults"], width=640, scheme="light") as found:
        found.page.evaluate("document.documentElement.style.fontSize = '28px'")

        assert not found.is_too_wide


def test_themes_have_readable_contrast(browser: Browser, pages: dict[str, Path]) -> None:
    grounds = {}
    for scheme in SCHEMES:
        with opened(browser, pages["two symbols"], width=1200, scheme=scheme) as found:
            grounds[scheme] = ground(found.page)
            assert found.page.evaluate(CONTRAST) >= 4.5

    assert grounds == {"light": "rgb(247, 247, 245)", "dark": "rgb(20, 23, 26)"}


def test_printed_page_is_light(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["faults"], width=1200, scheme="dark") as found:
        found.page.emulate_media(media="print")

        assert ground(found.page) == "rgb(255, 255, 255)"
        assert found.page.pdf(format="A4").startswith(b"%PDF")


def test_parts_have_names_for_readers(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["portfolio"], width=1200, scheme="light") as found:
        count = found.page.evaluate("[...document.querySelectorAll('svg.chart')].length")
        named = found.page.evaluate(
            "[...document.querySelectorAll('svg.chart[role=img][aria-label]')].length"
        )

        assert count == named == 54
        assert found.page.evaluate("document.querySelectorAll('h1').length") == 1
        assert found.page.evaluate("document.querySelectorAll('th:not([scope])').length") == 0


def test_keyboard_reaches_assumptions(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["faults"], width=1200, scheme="light") as found:
        found.page.keyboard.press("Tab")
        outline = found.page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
        found.page.keyboard.press("Enter")

        assert outline == "3px"
        assert found.page.url.endswith("#assumptions")


def test_hostile_text_runs_no_script(browser: Browser, faulty: RunOnRecord, tmp_path: Path) -> None:
    decisions = [replace(each, verdict=HOSTILE, reason=HOSTILE) for each in faulty.decisions]
    manifest = faulty.manifest.model_copy(update={"seed": HOSTILE, "package": HOSTILE})
    path = tmp_path / "hostile.html"
    path.write_text(page_html(replace(faulty, decisions=decisions, manifest=manifest)), encoding="utf-8")

    with opened(browser, path, width=320, scheme="light") as found:
        assert found.complaints == []
        assert found.page.evaluate("document.scripts.length") == 0
        assert not found.is_too_wide


def test_injected_script_is_blocked(browser: Browser, faulty: RunOnRecord, tmp_path: Path) -> None:
    path = tmp_path / "injected.html"
    html = page_html(faulty).replace("</main>", "<script>document.title = 'ran'</script></main>")
    path.write_text(html, encoding="utf-8")

    with opened(browser, path, width=1200, scheme="light") as found:
        assert found.page.title() != "ran"
        assert "Content Security Policy" in "".join(found.complaints)
