"""The page `docs/how-to/watch-a-budget.md`, followed with the installed command: a budget moves in an open page."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.monitor.conftest import RunningDashboard
from tests.pages import ROOT, blocks_of

PAGE = ROOT / "docs" / "how-to" / "watch-a-budget.md"
PROGRAM = Path(sys.executable).parent / "agentic-trading"


def amounts(part: str) -> list[str]:
    """Return the amounts spent in the counters of a live part."""
    return re.findall(r'data-name="spent">([\d.]+)<', part)


@pytest.mark.timeout(120)
def test_budget_moves_on_the_page_of_the_how_to(tmp_path: Path) -> None:
    blocks = list(blocks_of(PAGE))
    bot = next(block for block in blocks if block.file == "bot.py")
    (tmp_path / "bot.py").write_text(bot.text, encoding="utf-8")
    shell = next(block for block in blocks if block.language == "sh")
    folder, start, play, _ = shell.text.splitlines()
    subprocess.run(shlex.split(folder), cwd=tmp_path, check=True)
    words = shlex.split(start.removesuffix("&"))
    assert words[0] == PROGRAM.name

    with subprocess.Popen(
        [PROGRAM, *words[1:], "--http", "127.0.0.1:0"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as dashboard:
        try:
            assert dashboard.stderr is not None
            url = re.search(r"http://[\d.]+:\d+", dashboard.stderr.readline())
            assert url
            shown = RunningDashboard(url[0])
            assert "No worker has reported a budget here yet" in shown.get("/").text
            command = [sys.executable, *shlex.split(play)[1:]]
            with subprocess.Popen(command, cwd=tmp_path) as running:
                first = shown.events("/events/budgets", lambda part: bool(amounts(part)))[-1]
                later = shown.events("/events/budgets", lambda part: amounts(part) > amounts(first))[-1]
                assert running.wait() == 0
        finally:
            dashboard.send_signal(signal.SIGTERM)

    assert float(amounts(later)[0]) > float(amounts(first)[0])
    assert dashboard.returncode == 0
