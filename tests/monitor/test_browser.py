"""The pages in a real browser: they fit, can be read by everyone, move without reload, and run no foreign script."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from agentic_trading.governance.commands import AddHalt, RemoveHalt
from agentic_trading.governance.controls_document import HaltScope
from agentic_trading.monitor.sources import SourceOptions
from tests.axe import source_or_skip, violations
from tests.browser import SCREENS, Chromium, Scheme, Visit, chromium, on_each_screen
from tests.desk.report.test_browser import CONTRAST, CUT
from tests.monitor.conftest import RunningDashboard, running_dashboard
from tests.monitor.fleet import Fleet

pytestmark = pytest.mark.timeout(180)  # servers, workers and a browser are started

SCHEMES: tuple[Scheme, Scheme] = ("light", "dark")
PATHS = ("/", "/fleet", "/nowhere")
MOST_TABS = 20
LIVE = ".live[data-on='1']"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    """Return a browser for the tests of this file."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def shown(fleet: Fleet) -> Iterator[RunningDashboard]:
    """Return a dashboard of the fleet."""
    with running_dashboard(SourceOptions((fleet.folder,), ledger_url=fleet.url)) as running:
        yield running


@pytest.mark.parametrize("path", PATHS)
def test_page_fits_its_screen(path: str, browser: Chromium, shown: RunningDashboard) -> None:
    def faults(visit: Visit) -> list[object]:
        # The status of an error page is in the console, and nothing else.
        complaints = [each for each in visit.complaints if "404" not in each]
        too_wide = ["scrolls to the side"] if visit.is_too_wide else []
        return [*complaints, *too_wide, *visit.page.evaluate(CUT)]

    assert browser.visit(shown.url + path, on_each_screen(faults)) == {width: [] for width in SCREENS}


def test_page_at_double_text_size_fits(browser: Chromium, shown: RunningDashboard) -> None:
    def enlarge(visit: Visit) -> bool:
        visit.page.evaluate("document.documentElement.style.fontSize = '30px'")
        return visit.is_too_wide

    assert not browser.visit(shown.url, enlarge, width=640)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("path", PATHS)
def test_page_has_no_serious_violation(
    path: str, scheme: Scheme, browser: Chromium, shown: RunningDashboard
) -> None:
    axe = source_or_skip()

    assert browser.visit(shown.url + path, lambda visit: violations(visit, axe), scheme=scheme) == []


def test_violation_is_found(browser: Chromium, shown: RunningDashboard) -> None:
    axe = source_or_skip()

    def spoil(visit: Visit) -> list[str]:
        # Not within the live part, which is replaced once a second.
        visit.page.evaluate("document.querySelector('.place').style.color = '#bbb'")
        visit.page.evaluate("document.documentElement.removeAttribute('lang')")
        return violations(visit, axe)

    found = "\n".join(browser.visit(shown.url, spoil))

    assert "color-contrast" in found
    assert "html-has-lang" in found


def test_themes_have_readable_contrast(browser: Chromium, shown: RunningDashboard) -> None:
    grounds = "getComputedStyle(document.documentElement).backgroundColor"

    def look(visit: Visit) -> tuple[str, float]:
        return str(visit.page.evaluate(grounds)), float(visit.page.evaluate(CONTRAST))

    found = {scheme: browser.visit(shown.url, look, scheme=scheme) for scheme in SCHEMES}

    assert found["light"][0] != found["dark"][0]
    assert min(contrast for _, contrast in found.values()) >= 4.5


def test_counter_moves_in_an_open_page(fleet: Fleet, browser: Chromium, shown: RunningDashboard) -> None:
    def look(visit: Visit) -> tuple[str, str, bool]:
        visit.page.evaluate("window.isSamePage = true")
        spent = visit.page.locator("td[data-name=spent]").first
        visit.page.locator(LIVE).wait_for()
        before = spent.inner_text()
        fleet.ask("alpha", "cmt-analyst", 3)
        expect(spent).not_to_have_text(before, timeout=10_000)
        return before, spent.inner_text(), bool(visit.page.evaluate("window.isSamePage"))

    before, after, is_same = browser.visit(shown.url, look)

    assert float(after) > float(before)
    assert is_same


def test_page_can_be_read_without_script(browser: Chromium, shown: RunningDashboard) -> None:
    def look(visit: Visit) -> tuple[list[str], str]:
        captions = [each.split("  ")[0].strip() for each in visit.page.locator("caption").all_inner_texts()]
        return captions, visit.page.locator(".live").inner_text()

    captions, lamp = browser.visit(shown.url, look, has_script=False)

    assert captions[:3] == ["alpha", "beta", "gamma"]
    assert "Workers" in captions
    assert lamp == "not live"


def test_keyboard_reaches_pages_and_calls(browser: Chromium, shown: RunningDashboard) -> None:
    def press(visit: Visit) -> dict[str, str]:
        found: dict[str, str] = {}
        while "budget_exhausted" not in found and len(found) < MOST_TABS:
            visit.page.keyboard.press("Tab")
            text = str(visit.page.evaluate("document.activeElement.textContent"))
            found[text] = str(visit.page.evaluate("getComputedStyle(document.activeElement).outlineWidth"))
        return found

    found = browser.visit(shown.url, press)

    assert [*found][:5] == ["Skip to the content", "Budgets", "Calls", "Trace", "Fleet"]
    assert "budget_exhausted" in found
    assert {*found.values()} == {"3px"}


def test_focus_stays_while_figures_move(browser: Chromium, shown: RunningDashboard) -> None:
    def look(visit: Visit) -> tuple[str, str]:
        before = ""
        for _ in range(MOST_TABS):
            visit.page.keyboard.press("Tab")
            before = str(visit.page.evaluate("document.activeElement.id"))
            if before.startswith("call-"):
                break
        stamp = visit.page.locator(".sub")
        expect(stamp).not_to_have_text(stamp.inner_text(), timeout=10_000)
        return before, str(visit.page.evaluate("document.activeElement.id"))

    before, after = browser.visit(shown.url, look)

    assert before.startswith("call-")
    assert after == before


def test_parts_have_names_for_readers(browser: Chromium, shown: RunningDashboard) -> None:
    def count(visit: Visit) -> list[int]:
        parts = (
            "svg.bar",
            "svg.bar[role=img][aria-label]",
            "h1",
            "th:not([scope])",
            "main",
            "nav[aria-label]",
        )
        return [visit.page.locator(part).count() for part in parts]

    bars, named, *others = browser.visit(shown.url, count)

    assert bars == named > 3
    assert others == [1, 0, 1, 1]


def test_injected_script_does_not_run(browser: Chromium, shown: RunningDashboard) -> None:
    def inject(visit: Visit) -> tuple[str, list[str]]:
        visit.page.evaluate(
            """() => {
              const script = document.createElement('script');
              script.textContent = "document.title = 'ran'";
              document.body.append(script);
              const image = document.createElement('div');
              image.innerHTML = '<img src="x" onerror="document.title = 1">';
              document.body.append(image);
            }"""
        )
        visit.page.wait_for_timeout(100)
        return visit.page.title(), visit.complaints

    title, complaints = browser.visit(shown.url, inject)

    assert title == "Budgets · agentic-trading"
    assert "Content Security Policy" in "".join(complaints)


def test_hostile_names_are_text(fleet: Fleet, browser: Chromium, shown: RunningDashboard) -> None:
    hostile = "<script>alert(1)</script>\"'><svg onload=alert(2)>\u202e\r\nevent: x"
    halt = AddHalt(HaltScope.AGENT, "x")
    fleet.order("alpha", halt, hostile)

    def look(visit: Visit) -> tuple[bool, int, list[str]]:
        visit.page.locator(LIVE).wait_for()
        visit.page.locator("text=alert(2)").first.wait_for()
        return visit.is_too_wide, int(visit.page.evaluate("document.scripts.length")), visit.complaints

    try:
        assert browser.visit(shown.url, look, width=320) == (False, 1, [])
    finally:
        fleet.order("alpha", RemoveHalt(HaltScope.AGENT, "x"))


def test_lost_connection_is_shown(fleet: Fleet, browser: Chromium) -> None:
    with ExitStack() as stack:
        running = stack.enter_context(running_dashboard(SourceOptions(ledger_url=fleet.url)))

        def look(visit: Visit) -> str:
            visit.page.locator(LIVE).wait_for()
            stack.close()
            visit.page.locator(".live[data-on='0']").wait_for()
            return visit.page.locator(".live").inner_text()

        assert "connection lost" in browser.visit(running.url, look)
