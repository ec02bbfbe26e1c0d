"""What stands in a text at depth 0 is found, whatever stands around it, and nothing else is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.result import Stage
from agentic_trading.structured import ParserException, read_json
from agentic_trading.structured.decode import JsonCandidate
from agentic_trading.structured.extract import (
    MOST_BRACKETS,
    MOST_CANDIDATES,
    json_candidates,
    only,
)
from agentic_trading.structured.outcome import UnreadableError
from agentic_trading.structured.tokens import SHOWN_CHARS

J = '{"a": 1}'
PROSE = [
    f"Sure, I've read it!\n{J}\nHope it's what you need.",
    f"Answer: {J}",
    f'Here\'s the JSON for "BTC":\n{J}',
    f'He said: "ok" - and: {J}',
    f"json\n{J}",
    f"{J}\n\nNote: x = 1, and so on.",
    f"- {J}",
    f"1. {J}",
    f"* **{J}**",
    f"> {J}",
    f"\N{ROCKET} {J} \N{ROCKET}",
    f"<answer>\n{J}\n</answer>",
    f"<|im_start|>{J}<|im_end|>",
    f"Action Input: {J}\nObservation",
    f"const x = {J};",
    f"callback({J})",
    f"`{J}`",
    f"~~~json\n{J}\n~~~",
    f"Use this:\n```json\n{J}\n```\nThat's all.",
    f"Use ```json {J}``` please",
    f"> ```json\n> {J}\n> ```",
    f"As in [1] {J} [2]",
    f"# so: {J}",
    f"[INFO] [see note, 1] (x) {{braces}} {J}",
    f"Order {{symbol}} of {{{{account}}}}: {J}",
    f"https://x.y/{{id}}?a=1 {J}",
    f"[x](http://a.b) {J}",
    f"- [ ] todo\n- [x] done\n{J}",
    f"On [2026-03-01] at [12:30]: {J}",
    f"```python\nx = {{'b': y}}\nprint(f'{{x}}')\n```\n```json\n{J}\n```",
    f"```json\n{J}\n```\n```bash\ncurl -d '{{\"a\": 2}}' x.y\n```",
    f"```\nplain [x]\n```\n{J}",
]
WHOLE = [
    f"```json\n{J}\n```",
    f"```\n{J}\n```",
    f"```JSON\n{J}\n```\n",
    f"  ```json5\r\n{J}\r\n```  ",
    f"```json {J} ```",
    f"```json\n{J}",
    f"\ufeff{J}",
    f"\u200b{J}\u00a0",
    f"{J}  \n\t\r\n",
    f"# Title\n{J}",
    f"/* so */ {J} // done",
    f"<think>Let {{a: b}} be… {{</think>{J}",
    f"\n<thinking>\n{{'a': 2}}\n</thinking>\n\n```json\n{J}\n```",
]


@pytest.mark.parametrize("text", [*PROSE, *WHOLE])
@pytest.mark.parametrize("slip", [False, True])
def test_single_object_is_found_with_slips(text: str, slip: bool) -> None:  # noqa: FBT001 - a parameter of the table above
    written = text.replace(J, "{'a': 1,}") if slip else text
    (found,) = json_candidates(written, lossless=True)

    assert read_json(written, mode="lossless") == found.value == {"a": 1}
    assert found.is_whole is (text in WHOLE)
    assert found.is_repaired is slip
    assert written[found.start : found.end].strip() == ("{'a': 1,}" if slip else J)


@pytest.mark.parametrize("text", PROSE)
def test_object_in_prose_is_found_strictly(text: str) -> None:
    (found,) = json_candidates(text, lossless=False)

    assert (found.value, found.text, found.is_repaired) == ({"a": 1}, J, False)


def kinds(text: str) -> list[tuple[str, int, str]]:
    (found,) = json_candidates(text, lossless=True)
    return [(fix.kind, int(fix.where), fix.before) for fix in found.fixes]


@pytest.mark.parametrize(
    ("text", "fixes"),
    [
        (f"It is: {J} ok?", [("prose", 0, "It is:"), ("prose", 16, "ok?")]),
        (f"```json\n{J}\n```", [("fence", 0, "```json")]),
        (f"```json {J} ```", [("fence", 0, "```json"), ("fence", 17, "```")]),
        ("``` {a: 1} ```", [("bare_key", 5, "a"), ("fence", 0, "```"), ("fence", 11, "```")]),
        (f"\ufeff{J}", [("white_space", 0, "\ufeff")]),
        (f"// so\n{J}", [("comment", 0, "// so")]),
        (f"{J} // 'b': 2", [("hidden_key", 9, "// 'b': 2")]),
        (f"# so: {J}", [("comment", 0, "# so:")]),
        (f"<think>x</think>{J}", [("thinking", 0, "<think>x</think>")]),
        (f"{'x' * 500} {J}", [("prose", 0, "x" * SHOWN_CHARS)]),
    ],
)
def test_surrounding_text_is_recorded(text: str, fixes: list[tuple[str, int, str]]) -> None:
    assert kinds(text) == fixes


@pytest.mark.parametrize("text", ["True", " 'a' ", "/* x */ None", "“a”", "5 // so"])
def test_scalar_with_slip_is_entire_document(text: str) -> None:
    (found,) = json_candidates(text, lossless=True)

    assert found.is_whole


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (f"{J} or {{b: 2}}", [{"a": 1}, {"b": 2}]),
        (f"{J}{J}", [{"a": 1}, {"a": 1}]),
        (f"```json\n{J}\n```\nor\n```json\n[2, 3]\n```", [{"a": 1}, [2, 3]]),
        (f"```python\n{J}\n```\n```js\n[4, 5]\n```", [{"a": 1}, [4, 5]]),
        ("[1] [2]", [[1], [2]]),
        (f"[true] {J}", [[True], {"a": 1}]),
        (f"[]{J}", [[], {"a": 1}]),
        (f"<think>{J}</think> {J} {{}}", [{"a": 1}, {}]),
    ],
)
def test_several_documents_are_ordered_and_ambiguous(text: str, values: list[Any]) -> None:
    found = json_candidates(text, lossless=True)

    assert [candidate.value for candidate in found] == values
    with pytest.raises(UnreadableError, match=rf"{len(values)} documents \(at {found[0].start}, "):
        only(found)
    with pytest.raises(ParserException) as refused:
        read_json(text, mode="lossless")
    assert refused.value.stage is Stage.AMBIGUOUS


@pytest.mark.parametrize(
    ("text", "stage", "kind"),
    [
        ("", Stage.JSON_PARSE, "json"),
        ("No.", Stage.JSON_PARSE, "json"),
        ("'a' 'b'", Stage.JSON_PARSE, "json"),
        ("Buy [now].", Stage.JSON_PARSE, "word"),
        (f"{J}, {{", Stage.AMBIGUOUS, "members"),
        (f'{J}, "b": 2}}', Stage.AMBIGUOUS, "members"),
        (f"{J},\n,", Stage.AMBIGUOUS, "members"),
        (f"so {J},", Stage.AMBIGUOUS, "members"),
        (f"{J}, note: x", Stage.AMBIGUOUS, "members"),
        (f'{J}\n"b": 2', Stage.AMBIGUOUS, "members"),
        (f"{J} 'b' : 2", Stage.AMBIGUOUS, "members"),
        (f'"b": {J}', Stage.AMBIGUOUS, "members"),
        (f"so\n 'b': {J}", Stage.AMBIGUOUS, "members"),
        (f'"b": 2\n{J}', Stage.AMBIGUOUS, "members"),
        (f"“b”: 2,\n{J}", Stage.AMBIGUOUS, "members"),
        (f"}} {J}", Stage.JSON_PARSE, "bracket"),
        (f"{J} ]", Stage.JSON_PARSE, "bracket"),
        (f"[1, 2 {J}", Stage.TRUNCATED, "open"),
        (f"{{ {J}", Stage.JSON_PARSE, "key"),
        (f"{{ {J} so", Stage.TRUNCATED, "open"),
        (f"{J}...", Stage.JSON_PARSE, "ellipsis"),
        (f"{J},\n…", Stage.JSON_PARSE, "ellipsis"),
        (f"<!-- {J} -->", Stage.AMBIGUOUS, "comment"),
        (f'"b": "c", "d{J}', Stage.AMBIGUOUS, "members"),
        (f"{{x {J}", Stage.JSON_PARSE, "colon"),
        (f"{J} {{", Stage.TRUNCATED, "open"),
        (f"{J} and [", Stage.TRUNCATED, "open"),
        (f'{J} and ["x', Stage.TRUNCATED, "string"),
        (f'{{b "x}} {J}', Stage.JSON_PARSE, "colon"),
        (f"{{b: c}} {J}", Stage.JSON_PARSE, "word"),
        (f'["x" y] {J}', Stage.JSON_PARSE, "word"),
        (f"[1, 2 x] {J}", Stage.JSON_PARSE, "word"),
        (f"{{it's}} {J}", Stage.TRUNCATED, "string"),
        (f"// {J}", Stage.AMBIGUOUS, "comment"),
        (f"so\n  # {J}", Stage.AMBIGUOUS, "comment"),
        (f"/* {J} */ {J}", Stage.AMBIGUOUS, "comment"),
        (f"{J} /* {J}", Stage.AMBIGUOUS, "comment"),
        (f"{J} /* so", Stage.TRUNCATED, "comment"),
        (f"<think>{J}", Stage.TRUNCATED, "thinking"),
        (f"{J} " * (MOST_CANDIDATES + 1), Stage.AMBIGUOUS, "candidates"),
        ("[x]" * (MOST_BRACKETS + 1) + J, Stage.JSON_PARSE, "word"),
        (" " * (1 << 20) + J, Stage.JSON_PARSE, "json"),
    ],
)
def test_suspicious_surrounding_text_is_refused(text: str, stage: Stage, kind: str) -> None:
    with pytest.raises(UnreadableError) as refused:
        json_candidates(text, lossless=True)

    assert (refused.value.stage, refused.value.violations[0].keyword) == (stage, kind)


def test_maximum_candidates_and_brackets_are_read() -> None:
    assert len(json_candidates(f"{J} " * MOST_CANDIDATES, lossless=True)) == MOST_CANDIDATES
    assert len(json_candidates("[x]" * MOST_BRACKETS + J, lossless=True)) == 1


@pytest.mark.parametrize("text", ["Order: {'a': 1}", "[1,]", f'```json\n{J[:-1]}, "a": 2}}\n```'])
def test_strict_extraction_repairs_no_slips(text: str) -> None:
    with pytest.raises(UnreadableError):
        json_candidates(text, lossless=False)


def test_embedded_repeated_key_is_detected() -> None:
    for text in ('```json\n{"a": 1, "a": 1}\n```', 'So: {"a": 1, "a": 1}'):
        for lossless in (True, False):
            (found,) = json_candidates(text, lossless=lossless)
            assert (found.value, found.text, found.is_repaired) == ({"a": 1}, '{"a":1}', True)


# Not words: what opens, closes, quotes (the whole is then a quoted text) or comments on something.
WORDS = st.text(st.characters(exclude_characters="{}[]\"'`´“”„‘’‚,:/*#<", exclude_categories=["Cs"])).filter(
    lambda words: "analysis" not in words and "assistantfinal" not in words
)  # they mark thinking


@given(WORDS, WORDS)
def test_surrounding_words_do_not_change_result(before: str, behind: str) -> None:
    found: JsonCandidate = only(json_candidates(f"{before}{J}{behind}", lossless=True))

    assert (found.value, found.text, found.start) == ({"a": 1}, J, len(before))
