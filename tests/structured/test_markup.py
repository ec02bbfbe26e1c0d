"""Thinking and code are set aside by their own marks, and only then."""

import json
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.result import Stage
from agentic_trading.structured import ParserException, read_json
from agentic_trading.structured.extract import MOST_WORK, CodeFences, strip_thinking
from agentic_trading.structured.outcome import UnreadableError


def test_leading_thinking_is_blanked_in_place() -> None:
    text, fixes = strip_thinking(" <think>a {b}</think>{}")

    assert text == " " * 21 + "{}"
    assert [(fix.kind, fix.where, fix.before) for fix in fixes] == [("thinking", "0", "<think>a {b}</think>")]


@pytest.mark.parametrize(
    "text", ["", "{}", "<thinker>x", "x < y", "[THOUGHT] {}", "an analysis: {}", "{} <|end|>"]
)
def test_text_without_a_mark_is_unchanged(text: str) -> None:
    assert strip_thinking(text) == (text, ())


@pytest.mark.parametrize(
    "text",
    [
        "so <think>x</think>",
        "x</think>",
        "<think>x</think> so </think>",
        "x</THINK >",
        "<thinking effort='high'>x</thinking>",
        "<thought>x</thought>",
        "<thoughts>x</thoughts>",
        "<reasoning>x</reasoning>",
        "<seed:think>x</seed:think>",
        "<longcat_think>x</longcat_think>",
        "[THINK]x[/THINK]",
        "a list [[/THINK]",
        "◁think▷x◁/think▷",
        "<|START_THINKING|>x<|END_THINKING|>",
        "<|begin_of_thought|>x<|end_of_thought|>",
        "<|channel|>analysis<|message|>x<|end|>",
        "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|channel|>analysis<|message|>x<|channel|>final <|constrain|>json<|message|>",
        "x<|channel|>final<|message|>",
        "<|channel|>commentary to=f<|message|>{}<|call|>",
        "analysisIt says x.assistantfinal",
        "analysisIt says x.assistantcommentaryYesassistantfinal",
        "<|channel>thought\nx<channel|>",
        "<unused94>thought\nx<unused95>",
    ],
)
def test_text_before_last_closing_mark_blanked(text: str) -> None:
    draft = text.replace("x", '{"a": 1}', 1)

    found, fixes = strip_thinking(draft + '{"a": 2}')

    assert found == " " * len(draft) + '{"a": 2}'
    assert [(fix.kind, fix.where, fix.before) for fix in fixes] == [("thinking", "0", draft.strip()[:80])]


@pytest.mark.parametrize(
    "text",
    [
        "<THINK>x",
        "<think>",
        "<think>{}",
        "<think>{}</thinking>",
        "<think>a <think>b</think> {}",
        "\n<reasoning>{}</reas",
        "{} <think>",
        "[THINK]{}",
        "<|channel|>analysis<|message|>{}",
        "<|channel|>final<|message|>{}<|channel|>analysis",
        "analysisIt says {}",
        "<channel|>thought\n{}",
        "x {}</thin",
        "x {}<|chan",
        '{"a": "</think> {1}", "b": 2',
        "{} ['</think> {}",
    ],
)
def test_thinking_without_an_end_is_truncated(text: str) -> None:
    with pytest.raises(UnreadableError) as refused:
        strip_thinking(text)

    assert (refused.value.stage, refused.value.violations[0].keyword) == (Stage.TRUNCATED, "thinking")


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "<think>x</think>"}',
        '{"</think>": 1} so [[], "[/THINK]"]',
        "{'a': '</think>', \"b\": \"<think>\", c: 1}",
        '```json\n{"a": "</think>"}\n```',
    ],
)
def test_mark_inside_a_string_is_text(text: str) -> None:
    assert strip_thinking(text) == (text, ())
    found, _ = strip_thinking(f"<think>{text}</think>{text}")
    assert found == f"{' ' * (len(text) + 15)}{text}"


@pytest.mark.parametrize(
    "text",
    [
        'Draft {"a": "b, hm </think> {"c": 1}',
        '{"a": 1 /* </think> */}',
        '{"a": 1, # </think>\n"b": 2}',
        "[x" * (MOST_WORK // 20) + "</think>{}",
    ],
)
def test_mark_in_broken_value_is_ambiguous(text: str) -> None:
    with pytest.raises(UnreadableError) as refused:
        strip_thinking(text)

    assert (refused.value.stage, refused.value.violations[0].keyword) == (Stage.AMBIGUOUS, "thinking")


@pytest.mark.parametrize(
    "part",
    ["<think>", "<|channel|> ", "[", "{", "{“ ", '{"', "{# x\n", "{/* ", "[1 ", '{"a":', "<", "{„ \\q"],
)
def test_large_thinking_is_stripped_quickly(part: str) -> None:
    text = part * ((1 << 20) // len(part))

    start = time.process_time()
    with suppress(UnreadableError):
        strip_thinking(f"{text}</think>{{}}")
    assert time.process_time() - start < 4


DRAFT = '{"side": "SELL", "qty": 2}'
ANSWER = '{"side": "BUY", "qty": 1, "note": "no </think> here"}'
BLOCKS = [
    ("<think>", "</think>"),
    ("<thought>", "</thought>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("analysis", "assistantfinal"),
]
PROSE = st.text(
    st.sampled_from("ab .,:'\"{}[]\n") | st.characters(exclude_characters="<◁", exclude_categories=["Cs"])
)


@given(st.sampled_from([*BLOCKS, *(("", closing) for _, closing in BLOCKS)]), PROSE, PROSE)
def test_thinking_draft_is_never_the_answer(block: tuple[str, str], before: str, behind: str) -> None:
    thinking = f"{block[0]}It is {before}{DRAFT}{behind}{block[1]}"

    for text in (thinking, f"{thinking}\nI stay out.", f"{thinking}{ANSWER}"):
        with suppress(ParserException):
            assert read_json(text, mode="lossless") == json.loads(ANSWER)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("answer", [ANSWER, f"```json\n{ANSWER}\n```", f"So: {ANSWER}"])
def test_answer_cut_anywhere_gives_no_draft(block: tuple[str, str], answer: str) -> None:
    opening, closing = block
    text = f"{opening}It is {DRAFT}, or not.{closing}{answer}"
    whole = text.rindex("}") + 1

    for end in range(whole):
        with pytest.raises(ParserException):
            read_json(text[:end], mode="lossless")
    assert read_json(text, mode="lossless") == json.loads(ANSWER)


@pytest.mark.parametrize("block", BLOCKS)
def test_unopened_thinking_gives_no_draft(block: tuple[str, str]) -> None:
    text = f"It is {DRAFT}, or not.{block[1]}{ANSWER}"

    for end in range(text.index(block[1]) + len(block[1]), len(text)):
        with pytest.raises(ParserException):
            read_json(text[:end], mode="lossless")
    assert read_json(text, mode="lossless") == json.loads(ANSWER)


def blocks_of(text: str) -> str:
    """Return the characters of a text that stand in code."""
    blocks = CodeFences(text)
    return "".join(char for place, char in enumerate(text) if blocks.end_of(place))


PYTHON = "```python\nx = {}\n```"
JSON = "```json\n{}\n```"


@pytest.mark.parametrize("text", [f"{PYTHON}\n{JSON}", f"{JSON}\nso:\n{PYTHON}\nso", f"{PYTHON}\r\n{JSON}"])
def test_code_next_to_json_is_excluded(text: str) -> None:
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
def test_code_exclusion_requires_closed_fences(text: str) -> None:
    assert blocks_of(text) == ""
