"""Thinking and code are set aside by their own marks, and only then."""

import pytest

from agentic_trading.llm.result import Stage
from agentic_trading.structured.extract import CodeFences, strip_thinking
from agentic_trading.structured.outcome import UnreadableError


def test_thinking_at_the_beginning_is_blanked_and_each_place_stays_where_it_was() -> None:
    text, fixes = strip_thinking(" <think>a {b}</think>{}")

    assert text == " " * 21 + "{}"
    assert [(fix.kind, fix.where, fix.before) for fix in fixes] == [("thinking", "0", "<think>a {b}</think>")]


@pytest.mark.parametrize("text", ["", "{}", "so <think>x</think>", "<THINK>x", "<thinker>x", "x</think>{}"])
def test_any_other_text_is_left_as_it_is(text: str) -> None:
    assert strip_thinking(text) == (text, ())


@pytest.mark.parametrize("text", ["<think>", "<think>{}", "<think>{}</thinking>", "\n<reasoning>{}</reas"])
def test_thinking_without_an_end_was_cut(text: str) -> None:
    with pytest.raises(UnreadableError) as refused:
        strip_thinking(text)

    assert refused.value.stage is Stage.TRUNCATED


def blocks_of(text: str) -> str:
    """Return the characters of a text that stand in code."""
    blocks = CodeFences(text)
    return "".join(char for place, char in enumerate(text) if blocks.end_of(place))


PYTHON = "```python\nx = {}\n```"
JSON = "```json\n{}\n```"


@pytest.mark.parametrize("text", [f"{PYTHON}\n{JSON}", f"{JSON}\nso:\n{PYTHON}\nso", f"{PYTHON}\r\n{JSON}"])
def test_code_beside_json_is_set_aside(text: str) -> None:
    assert blocks_of(text).strip() == PYTHON


@pytest.mark.parametrize(
    "text",
    [
        "",
        PYTHON,
        JSON,
        f"{PYTHON}\n{PYTHON}",
        f"{JSON}\n```\n{{}}\n```",
        f"{JSON}\n{JSON}",
        f"{PYTHON[:-3]}{JSON}",
        f"{JSON}\n{PYTHON[:-3]}",
        f"so {PYTHON} {JSON}",
    ],
)
def test_nothing_is_set_aside_without_both_in_closed_fences(text: str) -> None:
    assert blocks_of(text) == ""
