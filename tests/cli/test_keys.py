"""`agentic-trading keys create` writes keys that are read as they are to be, and writes over none."""

from pathlib import Path

import pytest

from agentic_trading.bus.signing import read_keys
from agentic_trading.cli.exits import ExitCode
from tests.cli.conftest import Command


def test_created_keys_are_numbered_and_private(command: Command) -> None:
    first = command("keys", "create", "desk-a", "--dir", "principals")
    more = [command("keys", "create", "desk-a", "--dir", "principals", "--add") for _ in range(10)]
    other = command("keys", "create", "desk-b", "--dir", "principals")

    assert (first.code, first.out) == (ExitCode.DONE, "Created key principals/desk-a/1\n")
    assert more[-1].out == "Created key principals/desk-a/11\n"
    assert other.code == ExitCode.DONE
    files = [path for path in Path("principals").rglob("*") if path.is_file()]
    folders = [Path("principals"), Path("principals/desk-a")]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.stat().st_mode & 0o077 for path in folders} == {0}
    keys = read_keys(Path("principals"))
    assert (
        keys["desk-a"][0] == Path("principals/desk-a/1").read_bytes().strip()
    )  # it signs until it is removed
    assert len({*keys["desk-a"], *keys["desk-b"]}) == 12
    assert {len(key) for key in keys["desk-a"]} == {64}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["desk-a"], "principals/desk-a already has keys (1). Allowed: --add, to add another key."),
        (["desk-b", "--add"], "principals/desk-b has no key yet. Allowed: a first key, without --add"),
        (
            ["old", "--add"],
            "principals/old is a file with one key, not a folder. Allowed: the file at principals/old/1",
        ),
        (["a b"], "the key is called 'a b'. Allowed: 1 to 128 letters, digits and ._@-"),
        (["../desk-c"], "the key is called '../desk-c'"),
        (["desk-a", "--dir", "principals/old"], "principals/old/desk-a cannot be written (File exists)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_key_creation_changes_no_key(words: list[str], said: str, command: Command) -> None:
    command("keys", "create", "desk-a", "--dir", "principals")
    Path("principals/old").write_bytes(b"k" * 32)
    before = read_keys(Path("principals"))

    ended = command("keys", "create", "--dir", "principals", *words)

    assert (ended.code, ended.out) == (ExitCode.BAD_INPUT, "")
    assert said in ended.err
    assert read_keys(Path("principals")) == before
