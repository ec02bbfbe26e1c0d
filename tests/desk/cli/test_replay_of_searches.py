"""`replay run` on the folder of `strategy propose`."""

import sys

import pytest

from agentic_trading.cli.exits import ExitCode
from tests.cli.conftest import Command

pytestmark = pytest.mark.timeout(120)


def test_a_search_is_refused_with_the_command_that_repeats_it(command: Command) -> None:
    search = ["strategy", "propose", "--rounds", "2", "--random", "0"]
    first = command(*search, "--out", "search")
    assert first.code == ExitCode.DONE, first.err

    program = ["--", sys.executable, "-c", ""]
    for words in (["search"], ["search", *program], ["search/interactions.jsonl", *program]):
        refused = command("replay", "run", *words)
        assert refused.code == ExitCode.BAD_INPUT
        assert "a search of `strategy propose`" in refused.err
        named = refused.err.split("agentic-trading ")[1].split()
        assert named == ["strategy", "propose", "--provider", "recorded", "--from", "search"]
    again = command(*search, "--provider", "recorded", "--from", "search", "--out", "again")
    assert again.code == ExitCode.DONE, again.err
    assert again.out.split("\nTrace")[0] == first.out.split("\nTrace")[0]
