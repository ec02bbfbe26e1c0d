"""axe-core in a page: the rules of accessibility that a program can check. It is installed by npm when it is first needed."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.browser import Visit

REQUIRED = os.environ.get("REQUIRE_SERVICES") == "1"  # noqa: TID251 - test set-up
VERSION = "4.14.1"
PLACE = Path(sys.prefix) / f"axe-core-{VERSION}.js"
WITHIN_S = 120


@cache
def source_or_skip() -> str:
    """Return the script of axe-core; skips the test where it cannot be installed, or fails it where it must be."""
    if not PLACE.exists():
        problem = _install()
        if problem and REQUIRED:
            pytest.fail(f"axe-core is missing, and services are required: {problem}")
        if problem:
            pytest.skip(f"no axe-core: {problem}")
    return PLACE.read_text(encoding="utf-8")


def _install() -> str:
    """Install axe-core, and return the problem, or an empty text."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not on PATH"
    with TemporaryDirectory(dir=PLACE.parent) as folder:
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder]
        command = [npm, "install", *options, f"axe-core@{VERSION}"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
        if ended.returncode:
            return f"npm install ended with {ended.returncode}: {ended.stderr.strip()[-300:]}"
        # In one step, because other test processes may look for it at the same time.
        (Path(folder) / "node_modules" / "axe-core" / "axe.min.js").replace(PLACE)
    return ""


def violations(visit: Visit, source: str) -> list[str]:
    """Return the serious and critical violations of a page, each with its first place."""
    visit.page.evaluate(source)
    found: list[dict[str, Any]] = visit.page.evaluate("axe.run().then(result => result.violations)")
    return [
        f"{each['id']}: {each['help']} ({each['nodes'][0]['html'][:120]})"
        for each in found
        if each["impact"] in {"serious", "critical"}
    ]
