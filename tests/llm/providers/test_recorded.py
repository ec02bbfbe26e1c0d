"""What was recorded is served again, answers and failures alike."""

from typing import Any

import pytest

from agentic_trading.llm.errors import FailureKind, FailureReason, ProviderError
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.offline import RecordedAnswers, RecordedKey
from agentic_trading.llm.result import AttemptTrace, Stage
from tests.build import interaction, result
from tests.structured.asking import request

ASKED = request()


def recorded(to: ModelRequest = ASKED, **changes: Any) -> LLMInteraction:
    """Return an attempt at `to` on record; `changes` are fields of `LLMResult`."""
    kept = result(**{"envelope_id": to.envelope.envelope_id, "stop_reason": "end_turn", **changes})
    return interaction(envelope=to.envelope, result=kept)


def failed(kind: FailureKind, **changes: Any) -> dict[str, Any]:
    """Return the fields of an attempt that got no answer."""
    reason = FailureReason(category=kind, description=f"recorded {kind}")
    return {
        "raw_output": "",
        "stop_reason": "",
        "success": False,
        "failure": reason,
        "parsed_output": {},
        **changes,
    }


async def test_recorded_answer_is_served_unchanged() -> None:
    kept = recorded(
        raw_output='{"answer": 0.10}', provider_request_id="req", provider_response_id="msg", cost_nusd=7
    )

    answer = await RecordedAnswers([kept]).complete(ASKED)

    assert (answer.text, answer.stop_reason, answer.model) == (
        '{"answer": 0.10}',
        "end_turn",
        "claude-sonnet-5-5",
    )
    assert (answer.usage, answer.provider_request_id, answer.provider_response_id) == (
        kept.result.usage,
        "req",
        "msg",
    )
    assert await RecordedAnswers([kept]).find(ASKED.envelope, 1) == kept.result


async def test_recording_is_found_by_full_key() -> None:
    placed: dict[str, Any] = {"tenant_id": "acme", "agent_id": "a", "step": "1"}
    second = recorded(request(**placed), attempt_number=2, raw_output="second")
    later = recorded(request(occurrence=1, **placed), raw_output="later")
    answers = RecordedAnswers([recorded(request(**placed), raw_output="first"), second, later])

    calls: list[tuple[dict[str, Any], int]] = [
        ({}, 1), ({}, 2), ({"occurrence": 1}, 1), ({"occurrence": 1}, 2), ({"occurrence": 2}, 1),
        ({"agent_id": "b"}, 1), ({"step": "2"}, 1), ({"tenant_id": "other"}, 1), ({"agent_id": ""}, 1),
    ]  # fmt: skip

    found = [
        await answers.find(request(**{**placed, **changed}).envelope, attempt) for changed, attempt in calls
    ]

    assert [one and one.raw_output for one in found] == ["first", "second", "later", *[None] * 6]
    assert len(answers.misses) == 6


async def test_equal_requests_of_agents_stay_separate() -> None:
    asked = [request(agent_id=agent) for agent in ("a", "b")]
    answers = RecordedAnswers(recorded(one, raw_output=one.envelope.agent_id) for one in asked)

    assert [(await answers.complete(request(agent_id=agent))).text for agent in ("b", "a")] == ["b", "a"]


async def test_recorded_tool_call_stays_tool_call() -> None:
    answers = RecordedAnswers([recorded(raw_output='{"symbol":"BTC"}', tool_called="quote")])

    assert (await answers.complete(ASKED)).tool_called == "quote"


async def test_unusable_recordings_are_served_as_answers() -> None:
    refused = recorded(raw_output="", stop_reason="refusal", success=False)
    cut = recorded(raw_output='{"a', stop_reason="max_tokens", success=False)
    empty = recorded(
        raw_output="",
        stop_reason="",
        reading=AttemptTrace(parser="p", transport="prompted", verdict=Stage.RESPONSE_EMPTY),
    )

    assert [(await RecordedAnswers([one]).complete(ASKED)).stop_reason for one in (refused, cut, empty)] == [
        "refusal",
        "max_tokens",
        "",
    ]


@pytest.mark.parametrize(
    ("kind", "sent"),
    [(FailureKind.TIMEOUT, True), (FailureKind.RATE_LIMIT, False), (FailureKind.BUDGET_EXHAUSTED, False)],
)
async def test_recorded_failure_raises_same_error(kind: FailureKind, sent: bool) -> None:  # noqa: FBT001 - a parameter of the table above
    kept = recorded(**failed(kind, in_doubt=sent, provider_request_id="req"))

    with pytest.raises(ProviderError, match=f"recorded {kind}") as again:
        await RecordedAnswers([kept]).complete(ASKED)

    assert (again.value.kind, again.value.sent, again.value.provider_request_id) == (kind, sent, "req")


async def test_failure_without_reason_still_raises() -> None:
    kept = recorded(**{**failed(FailureKind.TIMEOUT), "failure": None, "error": "broke"})

    with pytest.raises(ProviderError, match="broke"):
        await RecordedAnswers([kept]).complete(ASKED)


async def test_replay_miss_error_names_request() -> None:
    answers = RecordedAnswers([])
    named = r"rk1:[0-9a-f]{64} \(tenant 'default', agent 'analyst-1', step '', occurrence 0, attempt 1\)"

    with pytest.raises(
        ProviderError, match=f"{named}; the request is not recorded for this tenant"
    ) as missed:
        await answers.complete(ASKED)

    assert (missed.value.kind, missed.value.sent) == (FailureKind.REPLAY_MISS, False)
    assert answers.misses == [RecordedKey.of(ASKED.envelope, 1)]


async def test_replay_miss_lists_similar_tenant_calls() -> None:
    others = [request(agent_id="a", step="7"), request(agent_id="secret", tenant_id="other")]
    answers = RecordedAnswers(map(recorded, others))

    with pytest.raises(
        ProviderError, match="recorded for: agent 'a', step '7', occurrence 0, attempt 1"
    ) as missed:
        await answers.complete(ASKED)

    assert "secret" not in str(missed.value)


async def test_unused_recordings_are_reported() -> None:
    answers = RecordedAnswers([recorded(), recorded(attempt_number=2), recorded(request(occurrence=1))])

    await answers.find(ASKED.envelope, 2)

    first = RecordedKey.of(ASKED.envelope, 1)
    assert answers.unused == [first, first._replace(occurrence=1)]
    assert answers.misses == []


async def test_matching_envelope_recording_is_preferred() -> None:
    first, same = recorded(request(), raw_output="first"), recorded(raw_output="same")
    answers = RecordedAnswers([first, same])

    assert [(await answers.complete(to)).text for to in (ASKED, request())] == ["same", "first"]


async def test_records_of_one_key_are_served_once_each_in_order() -> None:
    days = [recorded(request(), raw_output=day) for day in ("monday", "tuesday", "wednesday")]
    answers, asked = RecordedAnswers(days), [request() for _ in range(4)]
    key = RecordedKey.of(ASKED.envelope, 1)

    first = (await answers.complete(asked[0])).text
    unused = answers.unused
    # A second delivery of an envelope gets the answer of the first one.
    found = [(await answers.complete(asked[number])).text for number in (0, 1, 0, 2)]
    with pytest.raises(ProviderError, match="its records are all served to other calls") as missed:
        await answers.complete(asked[3])

    assert (first, unused) == ("monday", [key, key])
    assert found == ["monday", "tuesday", "monday", "wednesday"]
    assert missed.value.kind == FailureKind.REPLAY_MISS
    assert (answers.misses, answers.unused) == ([key], [])


def run(*texts: str) -> list[LLMInteraction]:
    """Return the records of equal requests that one client made since its start."""
    return [recorded(request(occurrence=number), raw_output=text) for number, text in enumerate(texts)]


async def texts_of(answers: RecordedAnswers, *occurrences: int) -> list[str]:
    """Return the answers to equal requests, each in an envelope of its own. A miss is an empty text."""
    found = [await answers.find(request(occurrence=number).envelope, 1) for number in occurrences]
    return ["" if one is None else one.raw_output for one in found]


@pytest.mark.parametrize("lengths", [(1, 3), (2, 2), (3, 1), (1, 1, 2)])
async def test_one_replay_of_several_runs_gets_their_answers_in_order(lengths: tuple[int, ...]) -> None:
    runs = [[f"run {number}, {place}" for place in range(length)] for number, length in enumerate(lengths)]
    live = [text for texts in runs for text in texts]
    answers = RecordedAnswers(one for texts in runs for one in run(*texts))

    assert await texts_of(answers, *range(len(live) + 1)) == [*live, ""]
    assert answers.unused == []


async def test_calls_recorded_out_of_order_keep_their_occurrence() -> None:
    first, second = run("first", "second")
    day_2 = run("third", "fourth")
    answers = RecordedAnswers([second, first, *day_2[::-1]])

    assert await texts_of(answers, 0, 1, 2, 3) == ["first", "second", "third", "fourth"]


async def test_replay_that_restarts_too_gets_the_next_run() -> None:
    answers = RecordedAnswers([*run("a", "b"), *run("c", "d", "e")])

    assert await texts_of(answers, 0, 1, 0, 1, 2, 2) == ["a", "b", "c", "d", "e", ""]


async def test_second_attempt_has_the_record_of_its_first_one() -> None:
    alone, again = recorded(request(), raw_output="alone"), request()
    tried = [recorded(again, attempt_number=number, raw_output=f"try {number}") for number in (1, 2)]
    answers, asked = RecordedAnswers([alone, *tried]), [request(), request(occurrence=1)]

    found = [await answers.find(one.envelope, attempt) for one in asked for attempt in (1, 2)]

    assert [one and one.raw_output for one in found] == ["alone", None, "try 1", "try 2"]


async def test_miss_list_is_bounded() -> None:
    answers = RecordedAnswers([])

    for attempt in range(10_010):
        await answers.find(ASKED.envelope, attempt)

    assert len(answers.misses) == 10_000


async def test_recording_has_no_token_count() -> None:
    assert await RecordedAnswers([]).count_tokens(ASKED) is None
