"""The contract suites in a project of a user, outside of the repository and with a pytest of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.wheel import SUITES
from tests.pages import blocks_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "write-an-adapter.md"
(ADAPTER,) = [block.text for block in blocks_of(PAGE) if block.file == "test_house.py"]
RETRYING = ADAPTER.replace(
    "            reply = await self.ask(request.user)\n",
    "            try:\n"
    "                reply = await self.ask(request.user)\n"
    "            except TimeoutError:\n"
    "                reply = await self.ask(request.user)\n",
)
"""The adapter of the page, but it asks again after a timeout."""

pytestmark = pytest.mark.timeout(60)


def run_in(folder: Path, module: str, *runner: str) -> "subprocess.CompletedProcess[str]":
    """Run the tests of a module in a folder without our settings."""
    (folder / "test_house.py").write_text(module, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", *runner], cwd=folder, capture_output=True, text=True, check=False
    )


def test_adapter_of_page_passes_with_pytest(tmp_path: Path) -> None:
    ended = run_in(tmp_path, ADAPTER, "pytest", "-q", "-p", "no:randomly", "test_house.py")

    assert "15 passed" in ended.stdout, ended.stdout + ended.stderr


def test_adapters_pass_with_unittest(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(SUITES, encoding="utf-8")

    ended = run_in(tmp_path, ADAPTER, "unittest", "test_own")

    assert ended.returncode == 0, ended.stderr
    assert "Ran 30 tests" in ended.stderr


def test_retrying_adapter_fails_with_message_of_page(tmp_path: Path) -> None:
    assert RETRYING != ADAPTER
    ended = run_in(tmp_path, RETRYING, "pytest", "-q", "-p", "no:randomly", "test_house.py")

    assert "1 failed, 14 passed" in ended.stdout, ended.stdout + ended.stderr
    (message,) = [
        block.text.strip()
        for block in blocks_of(PAGE)
        if "is not asked again" in block.text and not block.file
    ]
    assert message in ended.stdout


def test_suites_load_without_a_test_runner() -> None:
    code = (
        "import sys, agentic_trading\n"
        "assert not [name for name in sys.modules if name.startswith('agentic_trading.testing')]\n"
        "from agentic_trading.testing import ProviderSuite\n"
        "assert 'agentic_trading.desk' not in sys.modules\n"
        "from agentic_trading.testing import AgentSuite, BarFeedSuite, ExchangeSuite\n"
        "print('pytest' in sys.modules, 'unittest.case' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ended.stdout == "False False\n"
