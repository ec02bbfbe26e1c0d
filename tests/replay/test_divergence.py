"""Two logs, two requests: what is not the same is named, and where it is first."""

from datetime import timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.envelope import EvidenceItem, LLMEnvelope, LLMProvider, ResponseFormat
from agentic_trading.llm.limits import LLMBudget, OutputPolicy
from agentic_trading.replay import first_difference, request_changes
from tests.build import NOW, envelope

LINE = b'{"as_of":"2026-01-02T00:00:00Z","body":{"price":"1.50","sizes":[1,2]},"kind":"fill","subject":"BTC"}'


@pytest.mark.parametrize(
    ("old", "new", "path", "was", "now"),
    [
        (b'"1.50"', b'"1.51"', "$.body.price", "1.50", "1.51"),
        (b"[1,2]", b"[1,3]", "$.body.sizes[1]", 2, 3),
        (b"[1,2]", b"[1]", "$.body.sizes", [1, 2], [1]),
        (b',"sizes":[1,2]', b"", "$.body.sizes", [1, 2], None),
        (b"[1,2]", b"[1,true]", "$.body.sizes[1]", 2, True),
        (b"[1,2]", b"[true,2]", "$.body.sizes[0]", 1, True),
        (b"[1,2]", b"[1,null]", "$.body.sizes[1]", 2, None),
        (b"[1,2]", b'{"a":1}', "$.body.sizes", [1, 2], {"a": 1}),
    ],
)
def test_first_differing_value_is_named(old: bytes, new: bytes, path: str, was: Any, now: Any) -> None:
    found = first_difference([b"{}", LINE], [b"{}", LINE.replace(old, new)])

    assert found is not None
    assert (found.line, found.path, found.recorded, found.fresh) == (2, path, was, now)
    assert found.what == "fill of BTC at 2026-01-02T00:00:00Z"


def test_differently_spelled_numbers_differ() -> None:
    found = first_difference([b'{"a":1.0,"b":2}'], [b'{"a":1.00,"b":2}'])

    assert found is not None
    assert found.path == "$.a"


def test_null_differs_from_missing_value() -> None:
    found = first_difference([b'{"a":{"b":null}}'], [b'{"a":{}}'])

    assert found is not None
    assert (found.path, found.recorded, found.fresh) == ("$.a", {"b": None}, {})


def test_difference_is_described_briefly() -> None:
    found = first_difference([LINE], [LINE.replace(b"1.50", b"9" * 400)])

    assert str(found).startswith(
        "line 1 (fill of BTC at 2026-01-02T00:00:00Z): $.body.price was '1.50', is '999"
    )
    assert len(str(found)) < 300


@pytest.mark.parametrize(("recorded", "fresh"), [([LINE], []), ([], [LINE])])
def test_missing_line_is_a_difference(recorded: list[bytes], fresh: list[bytes]) -> None:
    found = first_difference(recorded, fresh)

    assert found is not None
    assert (found.line, found.path) == (1, "$")
    assert (found.recorded is None, found.fresh is None) == (not recorded, not fresh)


@pytest.mark.parametrize("broken", [b"no json", b"[1]", b"7", b'{"a":', b"\xff"])
def test_malformed_line_is_a_difference(broken: bytes) -> None:
    found = first_difference([broken], [LINE])

    assert found is not None
    assert (found.line, found.path) == (1, "$")


@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers(0, 3), max_size=3), max_size=5), st.data())
def test_only_different_logs_have_difference(lines: list[dict[str, int]], data: st.DataObject) -> None:
    written = [orjson.dumps(line) for line in lines]
    other = data.draw(st.permutations(written))

    assert first_difference(written, written) is None
    assert (first_difference(written, other) is None) == (written == other)


def test_equal_requests_have_no_changes() -> None:
    assert request_changes(envelope(), envelope(subject="ETH")) == []


@pytest.mark.parametrize("name", ["tenant_id", "agent_id", "step"])
def test_request_changes_name_accounting_fields(name: str) -> None:
    before, after = envelope(**{name: "one"}), envelope(**{name: "other"})

    assert request_changes(before, after) == [f"{name}: was 'one', is 'other'"]


EVIDENCE = EvidenceItem(
    evidence_id="E1", source="bars", content={"close": 1}, retrieved_at=NOW, available_at=NOW
)
ASKED = {
    "as_of": NOW,
    "context_as_of": NOW,
    "retrieved_evidence": [EVIDENCE],
    "expected_output_schema": {"type": "object", "required": ["a"]},
}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("instructions", "Judge", "instructions: was 'Judge the market.', is 'Judge'"),
        ("prompt_version", "2", "prompt_version: was '', is '2'"),
        (
            "context",
            {"symbol": "ETHUSDT", "close": "42000.10"},
            "context.symbol: was 'BTCUSDT', is 'ETHUSDT'",
        ),
        ("as_of", NOW + timedelta(hours=1), "as_of: "),
        ("tools_allowed", ["search"], "tools_allowed: "),
        (
            "expected_output_schema",
            {"type": "object", "required": ["b"]},
            "expected_output_schema.required[0]: ",
        ),
        ("response_format", ResponseFormat.TEXT, "response_format: was 'json', is 'text'"),
        ("provider", LLMProvider.LOCAL, "provider: was 'anthropic', is 'local'"),
        ("model", "claude-opus-5-5", "model: was 'claude-sonnet-5-5', is "),
        ("temperature", 0.5, "temperature: was 0, is 0.5"),
        ("effort", "high", "effort: was None, is 'high'"),
        ("output_policy", OutputPolicy(answers_read=5), "output_policy.answers_read: was 2, is 5"),
        ("budget", LLMBudget(max_output_tokens=7), "budget.max_output_tokens: was 4096, is 7"),
        ("budget", LLMBudget(thinking_budget=9), "budget.thinking_budget: was 0, is 9"),
        ("retrieved_evidence", [], "evidence E1: "),
        (
            "retrieved_evidence",
            [EVIDENCE.model_copy(update={"content": {"close": 2}})],
            "evidence E1.content.close: ",
        ),
        ("retrieved_evidence", [EVIDENCE.model_copy(update={"source": "news"})], "evidence E1.source: "),
        (
            "retrieved_evidence",
            [EVIDENCE.model_copy(update={"available_at": NOW - timedelta(hours=1)})],
            "evidence E1.available_at: ",
        ),
        ("retrieved_evidence", [EVIDENCE, EVIDENCE], "evidence E2: was None, is {"),
    ],
)
def test_every_request_change_names_path(name: str, value: Any, said: str) -> None:
    recorded = envelope(**ASKED)
    fresh = envelope(**{**ASKED, name: value})

    (change,) = request_changes(recorded, fresh)

    assert change.startswith(said)


def test_irrelevant_ceiling_is_not_named() -> None:
    recorded = envelope(budget=LLMBudget(max_cost_nusd=1))
    fresh = envelope(budget=LLMBudget(max_cost_nusd=2), model="claude-opus-5-5")

    (change,) = request_changes(recorded, fresh)

    assert change.startswith("model")


def test_long_text_shows_first_difference() -> None:
    before = "x" * 500 + "longer" + "y" * 500

    (change,) = request_changes(
        envelope(instructions=before), envelope(instructions=before.replace("longer", "shorter"))
    )

    assert change.startswith("instructions, at character 500: was …'xxx")
    assert "longer" in change
    assert "shorter" in change
    assert len(change) < 250


def test_shortened_text_differs_at_end() -> None:
    text = "a long text " * 20

    (change,) = request_changes(envelope(instructions=text), envelope(instructions=text[:100]))

    assert change.startswith("instructions, at character 100: ")


def test_changes_cover_all_request_hash_fields() -> None:
    """Change each field of an envelope in turn: a change is named if the hash or the counter of the call differs."""
    other: dict[str, Any] = {
        "instructions": "Other.", "prompt_version": "9", "context": {"x": 1}, "context_as_of": NOW,
        "tools_allowed": ["t"], "expected_output_schema": {"type": "array"}, "response_format": "text",
        "provider": "local", "model": "m", "temperature": 1.0, "effort": "low", "as_of": NOW,
        "output_policy": OutputPolicy(answers_read=9), "budget": LLMBudget(max_output_tokens=1),
        "retrieved_evidence": [EVIDENCE], "tenant_id": "t2", "agent_id": "a2", "priority": 5, "step": "s", "occurrence": 3,
        "agent_type": "z", "causation_id": "c", "idempotency_key": "k", "deadline": NOW, "must_understand": ["model"],
        "determinism": "greedy", "workflow": "planning",
    }  # fmt: skip
    plain = envelope(envelope_id="e", trace_id="t")
    fields = {name: getattr(plain, name) for name in LLMEnvelope.model_fields if not name.endswith("_hash")}

    for name, value in other.items():
        fresh = LLMEnvelope(**{**fields, name: value})
        named = bool(request_changes(plain, fresh))
        is_counted_elsewhere = name in {"tenant_id", "agent_id", "step"}
        assert named is (fresh.request_hash != plain.request_hash or is_counted_elsewhere), name
