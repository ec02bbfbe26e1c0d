"""The sentences and the P&L of installed renderers, and what is shown without one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.audit.trace import CallNode
from agentic_trading.canonical import exact_value
from agentic_trading.operate import trace_lines
from tests.build import event, interaction
from tests.own_package import forget, install_package

FULL = '''"""Show orders."""
def lines(event):
    return ["not used"]
def outcome(events):
    return "ordered"
def sentence(event):
    if event.kind == "other.failed":
        raise ValueError("no size")
    return ["order", "bought \\x1b 7", "because"] if event.kind == "other.ordered" else None
def profit(events):
    return "+1.00 USD", "1 order"
'''
OLD = '"""Show orders."""\ndef lines(event):\n    return ["size 7", "more"]\ndef outcome(events):\n    return ""\n'


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder on `sys.path`. Modules loaded from it are forgotten after the test."""
    folder = tmp_path / "site"
    monkeypatch.syspath_prepend(str(folder))
    trace_lines.renderer_of.cache_clear()
    yield folder
    trace_lines.renderer_of.cache_clear()
    forget("other_desk")


def test_renderer_returns_sentence_and_profit(site: Path) -> None:
    install_package(site, "other-desk", FULL, renderers="other = other_desk")
    warnings: list[str] = []

    told = trace_lines.sentence_of(event("other.ordered"), warnings.append)
    unknown = trace_lines.sentence_of(event("other.split"), warnings.append)

    assert told == ["order", "bought \\x1b 7", "because"]
    assert unknown == ["other split", "not used"]
    assert trace_lines.profit_of([interaction(), event("other.ordered")], warnings.append) == (
        "+1.00 USD",
        "1 order",
    )
    assert warnings == []


def test_failing_sentence_falls_back_to_lines(site: Path) -> None:
    install_package(site, "other-desk", FULL, renderers="other = other_desk")
    warnings: list[str] = []

    assert trace_lines.sentence_of(event("other.failed"), warnings.append) == ["other failed", "not used"]
    assert warnings == ["the renderer other failed (ValueError: no size). Its events are shown without it."]


def test_renderer_without_sentences_shows_its_lines(site: Path) -> None:
    install_package(site, "other-desk", OLD, renderers="other = other_desk")

    assert trace_lines.sentence_of(event("other.ordered"), pytest.fail) == ["other ordered", "size 7", "more"]
    assert trace_lines.profit_of([event("other.ordered")], pytest.fail) == ("", "")


def test_event_without_values_has_an_empty_sentence() -> None:
    assert trace_lines.sentence_of(event("call.requested", body={}), pytest.fail) == ["call requested", ""]


def lines_of_call(**changes: Any) -> list[str]:
    return trace_lines.step_text(CallNode((interaction(**changes),)), pytest.fail)


def test_accepted_answer_is_shown_with_its_question() -> None:
    answer = exact_value(b'{"veto":true,"size":0.10}')
    lines = lines_of_call(instructions="Is there a reason\n  not to buy?", parsed_output=answer)

    assert lines[1] == "question: Is there a reason not to buy?"
    assert lines[-1] == '  answer: {"veto":true,"size":0.10}'


def test_long_question_and_answer_are_cut() -> None:
    long = "up " * 200
    lines = lines_of_call(instructions=long, parsed_output={"why": long})

    assert lines[1] == f"question: {long[:320]}…"
    assert lines[-1] == f'  answer: {{"why":"{long[:312]}…'


def test_answer_in_words_is_shown_escaped() -> None:
    lines = lines_of_call(raw_output="up\x1b[31m", parsed_output={})

    assert lines[-1] == "  answer: up\\x1b[31m"


def test_call_without_instructions_or_accepted_answer_shows_neither() -> None:
    lines = lines_of_call(instructions="", actionable=False)

    assert [line.split()[0] for line in lines] == ["analyst-1", "attempt"]
