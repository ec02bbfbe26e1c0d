"""The command that ships sealed segments: its words, its placeholders, and texts that are not a command."""

from pathlib import Path

import pytest

from agentic_trading.llm.sealed_command import SealedCommand


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rclone copy {path} remote:bucket/{log}/", ["rclone", "copy", "/a/b.jsonl", "remote:bucket/1f/"]),
        ("cp '{path}' \"/mnt/two words/{log}\"", ["cp", "/a/b.jsonl", "/mnt/two words/1f"]),
        (
            "sh -c 'echo ${{HOME}}; cat \"$1\"' sh {path}",
            ["sh", "-c", 'echo ${HOME}; cat "$1"', "sh", "/a/b.jsonl"],
        ),
        ("sync-all", ["sync-all"]),
    ],
)
def test_words_are_split_and_placeholders_replaced(text: str, words: list[str]) -> None:
    assert SealedCommand.parse(text).for_file(Path("/a/b.jsonl"), "1f") == words


@pytest.mark.parametrize("name", ["two words", "it's", '"', "$(touch x)", "a;b", "{log}", "-rf", "ü\n"])
def test_hostile_file_name_stays_one_word(name: str) -> None:
    path = Path("/logs") / name

    words = SealedCommand.parse("cp {path} to/{log}").for_file(path, "1f")

    assert words == ["cp", str(path), "to/1f"]


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("", "a program and its arguments, such as"),
        ("  ", "a program and its arguments, such as"),
        ("'' {path}", "a program and its arguments, such as"),
        ("cp '{path}", "a command that closes every quote and does not end with a backslash"),
        ("cp {path} \\", "a command that closes every quote and does not end with a backslash"),
        ("cp {pth} x", r"\{path\} and \{log\} as placeholders, not \{pth\}"),
        ("cp {} x", r"\{path\} and \{log\} as placeholders, not \{\}"),
        ("cp {0} x", r"\{path\} and \{log\} as placeholders, not \{0\}"),
        ("cp {path.name} x", r"\{path\} and \{log\} as placeholders, not \{path.name\}"),
        ("cp {path!r} x", r"\{path\} and \{log\} as placeholders, not \{path!r\}"),
        ("cp {path:>9} x", r"\{path\} and \{log\} as placeholders, not \{path:>9\}"),
        ("cp {path x", r"\{path\} and \{log\}, each with two braces. Write other braces twice"),
        ("cp path} x", r"\{path\} and \{log\}, each with two braces. Write other braces twice"),
        ("cp {path} \0", "a command without a NUL character"),
    ],
)
def test_text_that_is_not_a_command_is_refused(text: str, allowed: str) -> None:
    with pytest.raises(ValueError, match=allowed):
        SealedCommand.parse(text)
