"""A headless Chromium for tests of pages: the one of the system, driven by Playwright."""

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

REQUIRED = os.environ.get("REQUIRE_SERVICES") == "1"  # noqa: TID251 - test set-up
T = TypeVar("T")
Scheme = Literal["light", "dark"]
HEIGHT: Final = 800
NAMES = ("chromium", "chromium-browser", "google-chrome")
SCREENS: Final[dict[int, Scheme]] = {320: "dark", 700: "light", 1000: "light", 1200: "dark", 1280: "dark"}
"""Widths in CSS pixels. Each has one theme, because a theme does not change the layout."""


def program_or_skip() -> str:
    """Return the path of Chromium; skips the test without it, or fails the test where it must be."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None and REQUIRED:
        pytest.fail("chromium is not on PATH, and services are required; install it")
    if program is None:
        pytest.skip("no browser: chromium is not on PATH")
    return program


@dataclass
class Visit:
    """A page in the browser. `complaints` are the texts of its console, its errors and its dialogs."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    @property
    def is_too_wide(self) -> bool:
        """Whether the page scrolls to the side."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))


def on_each_screen(look: Callable[[Visit], T]) -> Callable[[Visit], dict[int, T]]:
    """Return a look at a page on each of `SCREENS`. Opening it costs more than the looks."""

    def look_at_each(visit: Visit) -> dict[int, T]:
        found = {}
        for width, scheme in SCREENS.items():
            visit.page.set_viewport_size({"width": width, "height": HEIGHT})
            visit.page.emulate_media(color_scheme=scheme)
            found[width] = look(visit)
        return found

    return look_at_each


class Chromium:
    """A running browser on a thread of its own, because Playwright keeps an event loop running on its thread."""

    def __init__(self, browser: Browser, thread: Executor) -> None:
        self._browser = browser
        self._thread = thread

    def visit(
        self,
        path: Path | str,
        look: Callable[[Visit], T],
        *,
        width: int = 1200,
        scheme: Scheme = "light",
        has_script: bool = True,
    ) -> T:
        """Open a file or a URL in a theme, and return the result of `look`, which runs on the browser's thread."""
        url = path if isinstance(path, str) else path.resolve().as_uri()
        return self._thread.submit(self._visit, url, look, width, scheme, has_script=has_script).result()

    def _visit(
        self, url: str, look: Callable[[Visit], T], width: int, scheme: Scheme, *, has_script: bool
    ) -> T:
        page = self._browser.new_page(
            viewport={"width": width, "height": HEIGHT}, color_scheme=scheme, java_script_enabled=has_script
        )
        found = Visit(page)
        page.on("console", lambda message: found.complaints.append(message.text))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))

        def close(dialog: Dialog) -> None:
            found.complaints.append(dialog.message)
            dialog.dismiss()

        page.on("dialog", close)
        try:
            page.goto(url, wait_until="load")
            return look(found)
        finally:
            page.close()


@contextmanager
def chromium() -> Iterator[Chromium]:
    """Run a browser for as long as the block lasts."""
    program = program_or_skip()
    with ThreadPoolExecutor(max_workers=1) as thread:
        playwright = thread.submit(lambda: sync_playwright().start()).result()
        try:
            # Root has no sandbox in a container. The pages of tests are our own.
            options: dict[str, Any] = {"executable_path": program, "args": ["--no-sandbox"]}
            browser = thread.submit(lambda: playwright.chromium.launch(**options)).result()
            try:
                yield Chromium(browser, thread)
            finally:
                thread.submit(browser.close).result()
        finally:
            thread.submit(playwright.stop).result()
