"""Calls, Trace and Sessions in a real browser: they fit, work by keyboard and without script, and run no text."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest

from agentic_trading.desk.session.report import RunReport
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.monitor.sources import SourceOptions
from tests.audit.reading import call, step
from tests.axe import source_or_skip, violations
from tests.browser import SCREENS, Chromium, Visit, chromium, on_each_screen
from tests.desk.report.test_browser import CONTRAST, CUT
from tests.flows.sessions import kept_in
from tests.monitor.conftest import running_dashboard
from tests.monitor.record_pages import HOSTILE, LEGIBLE, add

pytestmark = pytest.mark.timeout(180)  # whole sessions are run, and a browser is started

NAMES = [
    "calls",
    "older calls",
    "newest traces",
    "a trade",
    "a repaired call",
    "an unknown id",
    "sessions",
    "hostile",
]
OPEN = "document.querySelectorAll('details').forEach(each => { each.open = true })"


@dataclass(frozen=True)
class Shown:
    """The pages of a running dashboard, by name."""

    urls: dict[str, str]


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    """Return a browser for the tests of this file."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def shown(sessions: dict[str, RunReport], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """Return the pages of two sessions, and of a log with hostile texts."""
    records = asyncio.run(kept_in(sessions["faults"].log))
    fill = next(each for each in records if isinstance(each, Event) and each.kind == "order.filled")
    repaired = next(
        each
        for each in records
        if isinstance(each, LLMInteraction) and each.result.reading and each.result.reading.errors
    )
    hostile = tmp_path_factory.mktemp("hostile") / "interactions.jsonl"
    fields = dict.fromkeys(
        ("agent_id", "subject", "instructions", "model", "raw_output", "tenant_id"), HOSTILE
    )
    texts = {"context": {HOSTILE: HOSTILE}, "failure": {"category": "refusal", "description": HOSTILE}}
    asked = call(1, trace_id="t", envelope_id="e", success=False, **fields, **texts)
    found = step(
        "order.filled", 2, trace_id="t", causation_id="e", body=dict.fromkeys(("side", "symbol"), HOSTILE)
    )
    asyncio.run(add(hostile, asked, found))
    stores = (sessions["faults"].log.parent.parent, hostile)
    with running_dashboard(SourceOptions(stores)) as dashboard:
        paths = {
            "calls": "/calls",
            "older calls": "/calls?failure=*",
            "newest traces": "/trace",
            "a trade": f"/trace?id={fill.id}",
            "a repaired call": f"/trace?id={repaired.interaction_id}",
            "an unknown id": f"/trace?{urlencode({'id': HOSTILE})}",
            "sessions": "/sessions",
            "hostile": "/trace?id=t",
            "report": "/sessions/faults/1",
        }
        yield Shown({name: f"{dashboard.url}{path}" for name, path in paths.items()})


def faults_of(visit: Visit) -> list[object]:
    """Return the complaints of a page with all its parts open, and the texts that are cut."""
    visit.page.evaluate(OPEN)
    # A browser complains about a page that is not found.
    complaints = [each for each in visit.complaints if "404" not in each]
    too_wide = ["scrolls to the side"] if visit.is_too_wide else []
    return [*complaints, *too_wide, *visit.page.evaluate(CUT)]


@pytest.mark.parametrize("name", NAMES)
def test_page_fits_and_is_readable(name: str, browser: Chromium, shown: Shown) -> None:
    def look(visit: Visit) -> tuple[list[object], bool]:
        return faults_of(visit), float(visit.page.evaluate(CONTRAST)) >= 4.5

    assert browser.visit(shown.urls[name], on_each_screen(look)) == dict.fromkeys(SCREENS, ([], True))


@pytest.mark.parametrize("name", [*NAMES, "report"])
def test_pages_are_accessible(name: str, browser: Chromium, shown: Shown) -> None:
    source = source_or_skip()

    def look(visit: Visit) -> list[str]:
        visit.page.evaluate(OPEN)
        return violations(visit, source)

    assert browser.visit(shown.urls[name], look) == []


@pytest.mark.parametrize("name", NAMES)
def test_page_at_double_text_size_fits(name: str, browser: Chromium, shown: Shown) -> None:
    def enlarge(visit: Visit) -> bool:
        visit.page.evaluate(OPEN)
        visit.page.evaluate("document.documentElement.style.fontSize = '30px'")
        return visit.is_too_wide

    assert not browser.visit(shown.urls[name], enlarge, width=640)


@pytest.mark.parametrize("has_script", [True, False])
def test_keyboard_opens_the_first_call(*, has_script: bool, browser: Chromium, shown: Shown) -> None:
    def press(visit: Visit) -> tuple[int, str, int]:
        page, presses = visit.page, 0
        call = page.locator("li.call summary").first
        while not call.evaluate("each => each === document.activeElement"):
            page.keyboard.press("Tab")
            presses += 1
            assert presses < 30
        outline = str(call.evaluate("each => getComputedStyle(each).outlineWidth"))
        closed = page.locator("li.call details[open]").count()
        page.keyboard.press("Enter")
        return presses, outline, page.locator("li.call > details[open]").count() - closed

    presses, outline, opened = browser.visit(shown.urls["a trade"], press, has_script=has_script)

    assert presses <= 15
    assert (outline, opened) == ("3px", 1)


def test_keyboard_finds_a_call(browser: Chromium, shown: Shown) -> None:
    def press(visit: Visit) -> list[str]:
        page = visit.page
        page.locator("input[name=workflow]").focus()
        page.keyboard.type("execution")
        page.keyboard.press("Enter")
        page.wait_for_url("**workflow=execution**")
        workflows = page.locator("td[data-name=workflow]").all_inner_texts()
        first = page.locator("tbody a").first
        first.focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/trace?id=*")
        return [*dict.fromkeys(workflows), page.locator("li.asked .kind").inner_text()]

    assert browser.visit(shown.urls["calls"], press) == ["execution", "call, execution"]


@pytest.mark.parametrize("name", NAMES)
def test_pages_are_whole_without_script(name: str, browser: Chromium, shown: Shown) -> None:
    def text(visit: Visit) -> str:
        return str(visit.page.locator("main").inner_text())

    assert browser.visit(shown.urls[name], text, has_script=False) == browser.visit(shown.urls[name], text)


def test_hostile_text_runs_no_script(browser: Chromium, shown: Shown) -> None:
    def look(visit: Visit) -> list[object]:
        visit.page.evaluate(OPEN)
        page = visit.page
        counts = [page.evaluate(f"document.querySelectorAll('{part}').length") for part in ("script", "svg")]
        return [*visit.complaints, *counts, page.locator("pre").first.inner_text()]

    assert browser.visit(shown.urls["hostile"], look, width=320) == [1, 0, LEGIBLE]


def test_injected_script_is_blocked(browser: Chromium, shown: Shown) -> None:
    def inject(visit: Visit) -> tuple[str, str]:
        visit.page.evaluate(
            "document.querySelector('main').append(Object.assign(document.createElement('script'), {text: 'document.title = `ran`'}))"
        )
        return visit.page.title(), "".join(visit.complaints)

    title, complaints = browser.visit(shown.urls["hostile"], inject)

    assert title != "ran"
    assert "Content Security Policy" in complaints


def test_report_keeps_its_style_and_its_policy(browser: Chromium, shown: Shown) -> None:
    def look(visit: Visit) -> list[object]:
        page = visit.page
        style = "getComputedStyle(document.documentElement).backgroundColor"
        return [*visit.complaints, page.evaluate(style), page.evaluate("document.scripts.length")]

    assert browser.visit(shown.urls["report"], look, scheme="dark") == ["rgb(20, 23, 26)", 0]


def test_parts_have_names_for_readers(browser: Chromium, shown: Shown) -> None:
    def count(visit: Visit) -> list[int]:
        parts = ("h1", "th:not([scope])", "pre:not([aria-label])", "input:not([type=hidden])", "label input")
        return [visit.page.locator(part).count() for part in parts]

    for name, fields in (("calls", 8), ("a trade", 1), ("sessions", 0)):
        assert browser.visit(shown.urls[name], count) == [1, 0, 0, fields, fields]


def test_address_of_a_page_has_no_path_of_the_machine(
    shown: Shown, sessions: dict[str, RunReport], browser: Chromium
) -> None:
    folder = str(Path(sessions["faults"].log).parent)

    for url in shown.urls.values():
        assert folder not in browser.visit(url, lambda visit: str(visit.page.content()))
