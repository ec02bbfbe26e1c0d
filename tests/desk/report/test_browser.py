"""The page in a real browser: it fits, has two themes, and runs no script."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page

from agentic_trading.desk.report.record import RunOnRecord
from tests.axe import source_or_skip, violations
from tests.browser import SCREENS, Chromium, Scheme, Visit, chromium, on_each_screen
from tests.desk.report.recorded import page_html
from tests.desk.report.test_page import HOSTILE

pytestmark = pytest.mark.timeout(180)  # whole sessions are run, and a browser is started

SCHEMES: tuple[Scheme, Scheme] = ("light", "dark")
NAMES = ["recorded", "faults", "two symbols", "portfolio"]
CUT = """
[...document.querySelectorAll('h1, h2, h3, p, dt, dd, th, td, li, code, figcaption')].filter(each => {
  const isCut = getComputedStyle(each).display !== 'inline' && each.scrollWidth > each.clientWidth + 1;
  return each.checkVisibility() && getComputedStyle(each.closest('thead') || each).position !== 'absolute'
    && (isCut || each.getBoundingClientRect().right > window.innerWidth + 1);
}).map(each => each.tagName + ': ' + each.textContent.slice(0, 60))
"""
"""The visible elements whose content is wider than their box, also where a column has no width at all."""
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
def browser() -> Iterator[Chromium]:
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


def faults_of(visit: Visit) -> list[object]:
    """Return the complaints of a page, the texts that are cut, and the labels that overlap."""
    too_wide = ["scrolls to the side"] if visit.is_too_wide else []
    return [*visit.complaints, *too_wide, *visit.page.evaluate(CUT), *visit.page.evaluate(OVERLAPPING)]


def ground(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))


@pytest.mark.parametrize("name", NAMES)
def test_page_fits_its_screen(name: str, browser: Chromium, pages: dict[str, Path]) -> None:
    assert browser.visit(pages[name], on_each_screen(faults_of)) == {width: [] for width in SCREENS}


def test_cut_and_overlapping_texts_are_found(browser: Chromium, pages: dict[str, Path]) -> None:
    def spoil(visit: Visit) -> list[object]:
        visit.page.evaluate("document.querySelector('.sub').style.whiteSpace = 'nowrap'")
        visit.page.evaluate("document.querySelectorAll('text').forEach(each => each.style.fontSize = '40px')")
        return faults_of(visit)

    found = "\n".join(map(str, browser.visit(pages["faults"], spoil, width=320)))

    assert "P: " in found
    assert " over " in found


def test_page_at_double_text_size_fits(browser: Chromium, pages: dict[str, Path]) -> None:
    def enlarge(visit: Visit) -> bool:
        visit.page.evaluate("document.documentElement.style.fontSize = '28px'")
        return visit.is_too_wide

    assert not browser.visit(pages["faults"], enlarge, width=640)


def test_themes_have_readable_contrast(browser: Chromium, pages: dict[str, Path]) -> None:
    def look(visit: Visit) -> tuple[str, float]:
        return ground(visit.page), float(visit.page.evaluate(CONTRAST))

    found = {scheme: browser.visit(pages["two symbols"], look, scheme=scheme) for scheme in SCHEMES}

    assert found["light"][0] == "rgb(247, 247, 245)"
    assert found["dark"][0] == "rgb(20, 23, 26)"
    assert min(contrast for _, contrast in found.values()) >= 4.5


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", NAMES)
def test_page_has_no_serious_violation(
    name: str, scheme: Scheme, browser: Chromium, pages: dict[str, Path]
) -> None:
    axe = source_or_skip()

    assert browser.visit(pages[name], lambda visit: violations(visit, axe), scheme=scheme) == []


def test_printed_page_is_light(browser: Chromium, pages: dict[str, Path]) -> None:
    def print_it(visit: Visit) -> tuple[str, bytes]:
        visit.page.emulate_media(media="print")
        return ground(visit.page), visit.page.pdf(format="A4")

    color, pdf = browser.visit(pages["faults"], print_it, scheme="dark")

    assert color == "rgb(255, 255, 255)"
    assert pdf.startswith(b"%PDF")


def test_parts_have_names_for_readers(browser: Chromium, pages: dict[str, Path]) -> None:
    def count(visit: Visit) -> list[int]:
        parts = ("svg.chart", "svg.chart[role=img][aria-label]", "h1", "th:not([scope])")
        return [visit.page.locator(part).count() for part in parts]

    assert browser.visit(pages["portfolio"], count) == [54, 54, 1, 0]


def test_keyboard_reaches_assumptions(browser: Chromium, pages: dict[str, Path]) -> None:
    def press(visit: Visit) -> tuple[str, str]:
        visit.page.keyboard.press("Tab")
        outline = visit.page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
        visit.page.keyboard.press("Enter")
        return outline, visit.page.url.partition("#")[2]

    assert browser.visit(pages["faults"], press) == ("3px", "assumptions")


def test_hostile_text_runs_no_script(browser: Chromium, faulty: RunOnRecord, tmp_path: Path) -> None:
    decisions = [replace(each, verdict=HOSTILE, reason=HOSTILE) for each in faulty.decisions]
    manifest = faulty.manifest.model_copy(update={"seed": HOSTILE, "package": HOSTILE})
    path = tmp_path / "hostile.html"
    path.write_text(page_html(replace(faulty, decisions=decisions, manifest=manifest)), encoding="utf-8")

    def look(visit: Visit) -> list[object]:
        return [*visit.complaints, visit.page.evaluate("document.scripts.length"), visit.is_too_wide]

    assert browser.visit(path, look, width=320) == [0, False]


def test_injected_script_is_blocked(browser: Chromium, faulty: RunOnRecord, tmp_path: Path) -> None:
    path = tmp_path / "injected.html"
    html = page_html(faulty).replace("</main>", "<script>document.title = 'ran'</script></main>")
    path.write_text(html, encoding="utf-8")

    title, complaints = browser.visit(path, lambda visit: (visit.page.title(), visit.complaints))

    assert title != "ran"
    assert "Content Security Policy" in "".join(complaints)
