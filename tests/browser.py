"""A headless Chromium for tests of pages: the one of the system, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

REQUIRED = os.environ.get("REQUIRE_SERVICES") == "1"  # noqa: TID251 - test set-up
Scheme = Literal["light", "dark"]
NAMES = ("chromium", "chromium-browser", "google-chrome")


def program_or_skip() -> str:
    """Return the path of Chromium; skips the test without it, or fails the test where it must be."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None and REQUIRED:
        pytest.fail("chromium is not on PATH, and services are required; install it")
    if program is None:
        pytest.skip("no browser: chromium is not on PATH")
    return program


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser for as long as the block lasts."""
    program = program_or_skip()
    with sync_playwright() as playwright:
        # Root has no sandbox in a container. The pages of tests are our own.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Opened:
    """A page in the browser. `complaints` are the texts of its console, its errors and its dialogs."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    @property
    def is_too_wide(self) -> bool:
        """Whether the page scrolls to the side."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))


@contextmanager
def opened(browser: Browser, path: Path, *, width: int, scheme: Scheme) -> Iterator[Opened]:
    """Open a file for as long as the block lasts, in a theme: light or dark."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    found = Opened(page)
    page.on("console", lambda message: found.complaints.append(message.text))
    page.on("pageerror", lambda error: found.complaints.append(str(error)))

    def close(dialog: Dialog) -> None:
        found.complaints.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", close)
    try:
        page.goto(path.resolve().as_uri(), wait_until="load")
        yield found
    finally:
        page.close()
