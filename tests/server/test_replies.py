"""Outcomes of calls as replies: which of several attempts the client is told of."""

from datetime import timedelta
from zoneinfo import ZoneInfo

from agentic_trading.client.outcome import Attempt, StructuredOutcome, TotalUsage
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.result import AttemptTrace, Stage, Usage
from agentic_trading.server.api_keys import new_api_key
from agentic_trading.server.calls import TABLES, Reply, call_reply, request_envelope
from agentic_trading.server.fields import read_request
from tests.build import NOW

AWAY = FailureReason(category=FailureKind.TIMEOUT, description="no answer came")


def attempt(number: int, verdict: Stage | None, text: str = "") -> Attempt:
    """Return an attempt. Without a verdict, it has no answer."""
    trace = None if verdict is None else AttemptTrace(parser="p", transport="verbatim", verdict=verdict)
    return Attempt(
        number=number, sent=True, trace=trace, usage=Usage(), cost_nusd=5,
        failure=AWAY if trace is None else None, next_step="final", in_doubt=False,
        interaction_id=f"i{number}", envelope_id="e", provider=LLMProvider.OPENAI, model="m", text=text,
    )  # fmt: skip


def reply(*attempts: Attempt) -> Reply:
    """Return the reply of a call that failed after these attempts."""
    key, _ = new_api_key(
        "desk", NOW - timedelta(days=1), {"tenant": "acme", "agent": "a", "models": {"gpt": "openai/m"}}
    )
    request = read_request(TABLES["responses"], b'{"model":"gpt","input":"x"}')
    envelope = request_envelope(request, key, {}, trace="", now=NOW)
    outcome = StructuredOutcome(
        ok=False, json=None, json_text="", usage=TotalUsage(cost_nusd=10), attempts=attempts, error=AWAY
    )
    return call_reply(request, envelope, outcome, ZoneInfo("UTC"), envelope.budget.max_output_tokens)


def test_rejected_answer_is_returned_if_asking_again_failed() -> None:
    first, second = (
        attempt(1, Stage.SCHEMA_VALIDATION, '{"old":1}'),
        attempt(2, Stage.SCHEMA_VALIDATION, '{"new":1}'),
    )

    told = reply(first, second, attempt(3, None), attempt(4, None))

    assert (told.status, told.body) == (200, b'{"new":1}')
    assert told.headers["x-agentic-verdict"] == "rejected"
    assert told.headers["x-agentic-interaction-id"] == told.headers["x-request-id"] == "i2"
    assert (told.headers["x-agentic-attempts"], told.headers["x-agentic-cost-nusd"]) == ("4", "10")


def test_answer_without_text_does_not_replace_a_failure() -> None:
    for attempts in ((attempt(1, None),), (attempt(1, Stage.RESPONSE_EMPTY), attempt(2, None))):
        told = reply(*attempts)

        assert told.status == 504
        assert b"no answer came" in told.body
        assert told.headers["x-agentic-interaction-id"] == f"i{len(attempts)}"
        assert "x-agentic-verdict" not in told.headers


def test_last_answer_keeps_its_own_verdict() -> None:
    told = reply(attempt(1, Stage.SCHEMA_VALIDATION, "{}"), attempt(2, Stage.DONE, '{"new":1}'))

    assert (told.body, told.headers["x-agentic-verdict"]) == (b'{"new":1}', "accepted")
