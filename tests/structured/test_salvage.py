"""A guess is for display: what it holds stands in the text, and it is never made where something was cut."""

import builtins
from decimal import Decimal
from typing import Any

import pytest

from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.envelope_rules import output_policy
from agentic_trading.llm.result import Stage, Violation
from agentic_trading.structured.outcome import UnreadableError
from agentic_trading.structured.pipeline import MAX_SALVAGE_CHARS, read_candidates, salvage_json

WHY = UnreadableError(Stage.JSON_PARSE, [Violation(path="$", keyword="word", message="a word")])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: BUY, b: 5}", {"a": "BUY", "b": 5}),
        ('{"a": hold}', {"a": "hold"}),
        ("{a: [1.50, {b: wait}], c: true, d: null}", {"a": [Decimal("1.50"), {"b": "wait"}], "c": True, "d": None}),
    ],
)  # fmt: skip
def test_guess_reads_otherwise_unreadable_text(text: str, value: Any) -> None:
    found = salvage_json(text, WHY)

    assert found.value == value
    assert not found.is_whole
    assert found.is_repaired
    assert [fix.kind for fix in found.fixes] == ["guess"]


def test_thinking_draft_is_not_guessed() -> None:
    policy = output_policy(EnvelopeWorkflow.GENERAL)

    level, (found,) = read_candidates("{a: SELL, b: 2}</think>{a: BUY, b: 5}", policy, {})

    assert (level, found.value) == ("guess", {"a": "BUY", "b": 5})
    assert [fix.kind for fix in found.fixes] == ["guess", "thinking"]


def test_guessed_numbers_keep_written_digits() -> None:
    assert salvage_json("{a: x, b: 0.10}", WHY).text == '{"a":"x","b":0.10}'


@pytest.mark.parametrize("text", ["{a: x, b: 5.}", "{a: x, b: .5}"])
def test_number_absent_from_text_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError, match="does not stand in the text") as refused:
        salvage_json(text, WHY)

    assert [violation.keyword for violation in refused.value.violations] == ["word", "guess"]


@pytest.mark.parametrize(
    "text", ["[" * 60_000, r"""{a: b, c: "\ud800"}""", f"{{a: {'x' * MAX_SALVAGE_CHARS}}}"]
)
def test_unsuitable_text_is_not_guessed(text: str) -> None:
    with pytest.raises(UnreadableError) as refused:
        salvage_json(text, WHY)

    assert refused.value is WHY


def test_missing_salvage_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any, **named: Any) -> Any:
        if name == "json_repair":
            raise ImportError(name)
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnreadableError, match=r"agentic-trading\[salvage\]"):
        salvage_json("{a: b}", WHY)
