"""The strategies of `move-a-strategy.md` are those that are run, and send the same orders."""

from pathlib import Path

import pytest

from benchmarks.peers.contender import is_ready
from benchmarks.strategies import NAMES, STRATEGIES, code_lines, ours, theirs
from tests.pages import BLOCKS


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    return ours(tmp_path_factory.mktemp("ours"))


def test_page_contains_files_of_strategies() -> None:
    blocks = [block.text for block in BLOCKS if block.page == "docs/how-to/move-a-strategy.md"]

    for path in STRATEGIES.values():
        code = path.read_text(encoding="utf-8").partition('"""\n\n')[2]
        assert code in blocks, path


def test_strategy_of_the_page_sends_eighty_orders(decided: list[list[str]]) -> None:
    assert len(decided) == 80
    assert [side for _, side in decided] == ["buy", "sell"] * 40
    assert decided[0] == ["2023-03-20T05:05:00+00:00", "buy"]


@pytest.mark.parametrize("name", NAMES)
def test_orders_of_peer_equal_ours(name: str, decided: list[list[str]], tmp_path: Path) -> None:
    if not is_ready(name):
        pytest.skip(f"{name} is not installed: `python -m benchmarks.strategies` does it")

    assert theirs(name, tmp_path) == decided


def test_own_strategy_is_the_shortest() -> None:
    lines = {name: code_lines(path) for name, path in STRATEGIES.items()}

    assert min(lines, key=lines.__getitem__) == "agentic_trading"
