"""Faults hit the share that was asked for, the same attempts in every run, and say so."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.fault_injection import FaultKind, Faults, FaultsError, FaultyProvider
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.structured import Accepted, InstructorParser
from tests.build import response
from tests.structured.asking import capability, request

PROMPTED = capability(native_schema=False)
TEXT = '{"answer": "four, as 2 + 2"}'


def asked(number: int = 0) -> ModelRequest:
    """Return a request of an envelope of its own."""
    return request(PROMPTED, envelope_id=f"envelope-{number}")


def faulty(faults: str, answer: Any = TEXT, seed: str = "seed") -> FaultyProvider:
    """Return a provider that answers the same each time, but for its faults."""
    return FaultyProvider(ScriptedProvider(lambda _: answer), Faults.parse(faults), seed)


async def outcome_of(provider: FaultyProvider, to: ModelRequest) -> str:
    """Return what became of a request, in a word and the text."""
    try:
        answer = await provider.complete(to)
    except ProviderError as e:
        return f"{e}"
    return f"{answer.provider_response_id} {answer.stop_reason} {answer.text}"


def test_fault_shares_parse_in_any_order() -> None:
    assert Faults.parse(" cut=1.5% , malformed = 5%").shares == (
        (FaultKind.MALFORMED, 0.05),
        (FaultKind.CUT, 0.015),
    )
    assert Faults.parse("").shares == ()


def test_cut_is_alias_of_truncated() -> None:
    assert Faults.parse("truncated=1.5%") == Faults.parse("cut=1.5%")


@pytest.mark.parametrize(
    ("text", "part", "reason"),
    [
        ("malformd=5%", "malformd=5%", "not a kind"),
        ("cut", "cut", "not a share"),
        ("cut=5", "cut=5", "not a share"),
        ("cut=-5%", "cut=-5%", "not a share"),
        ("cut=101%", "cut=101%", "not a share"),
        ("cut=nan%", "cut=nan%", "not a share"),
        ("cut=5%,cut=6%", "cut=6%", "is given twice"),
        ("cut=60%,refusal=60%", "cut=60%,refusal=60%", "more than 100%"),
        ("=5%", "=5%", "not a kind"),
    ],
)
def test_invalid_fault_description_lists_allowed_kinds(text: str, part: str, reason: str) -> None:
    with pytest.raises(
        FaultsError, match=f"{reason}.*Allowed: malformed, timeout, refusal, truncated"
    ) as refused:
        Faults.parse(text)

    assert refused.value.part == part


def test_fault_shares_may_total_hundred_percent() -> None:
    faults = Faults.parse("malformed=33.3%,timeout=33.3%,refusal=33.4%")

    assert faults.pick(0.999999) is FaultKind.REFUSAL


@given(st.floats(0, 1, exclude_max=True))
def test_chance_picks_matching_fault_kind(chance: float) -> None:
    picked = Faults.parse("malformed=50%,cut=25%").pick(chance)

    assert picked is (FaultKind.MALFORMED if chance < 0.5 else FaultKind.CUT if chance < 0.75 else None)


async def test_fault_shares_hold_over_many_envelopes() -> None:
    provider = faulty("malformed=20%,timeout=10%,refusal=10%,cut=10%")

    words = Counter([(await outcome_of(provider, asked(number))).split()[0] for number in range(1000)])

    assert words["end_turn"] == pytest.approx(500, abs=60)
    assert words["injected:malformed"] == pytest.approx(200, abs=50)
    assert words["timeout:"] == pytest.approx(100, abs=40)
    assert words["injected:refusal"] == pytest.approx(100, abs=40)
    assert words["injected:cut"] == pytest.approx(100, abs=40)


async def test_faults_are_deterministic_in_any_order() -> None:
    provider = faulty("malformed=40%,timeout=10%,refusal=10%,cut=40%")
    requests = [asked(number) for number in range(50)]

    forwards = [await outcome_of(provider, to) for to in requests]
    backwards = [await outcome_of(provider, to) for to in reversed(requests)]
    async with asyncio.TaskGroup() as group:
        together = [group.create_task(outcome_of(provider, to)) for to in requests]

    assert forwards == backwards[::-1] == [task.result() for task in together]
    assert forwards != [
        await outcome_of(faulty("malformed=40%,cut=40%", seed="other"), to) for to in requests
    ]


async def test_injected_timeout_counts_as_sent() -> None:
    with pytest.raises(ProviderError, match="injected timeout") as failed:
        await faulty("timeout=100%").complete(asked())

    assert (failed.value.kind, failed.value.sent) == (FailureKind.TIMEOUT, True)


async def test_injected_refusal_has_no_text() -> None:
    answer = await faulty("refusal=100%").complete(asked())

    assert (answer.text, answer.stop_reason, answer.provider_response_id) == (
        "",
        "refusal",
        "injected:refusal",
    )


async def test_cut_answers_are_prefixes_half_unmarked() -> None:
    provider = faulty("cut=100%")

    answers = [await provider.complete(asked(number)) for number in range(100)]

    assert all(TEXT.startswith(answer.text) and answer.text != TEXT for answer in answers)
    assert Counter(answer.stop_reason for answer in answers)["end_turn"] == pytest.approx(50, abs=20)


async def test_faulty_answers_are_never_accepted() -> None:
    parser = InstructorParser()
    for faults in ("malformed=100%", "cut=100%", "refusal=100%"):
        for number in range(100):
            answer = await faulty(faults).complete(asked(number))

            assert not isinstance(parser.read(answer, asked(number)), Accepted), answer.text


async def test_malformed_answers_break_in_many_ways() -> None:
    provider = faulty(
        "malformed=100%", json.dumps({"answer": "a, b", "n": 1, "list": [1, 2], "o": {"k": True}})
    )

    texts = {(await provider.complete(asked(number))).text for number in range(100)}

    assert len(texts) > 10


async def test_malformed_fault_drops_structured_answer() -> None:
    answer = await faulty("malformed=100%", response(TEXT, structured={"answer": "4"})).complete(asked())

    assert answer.structured is None


async def test_answer_without_faults_is_passed_through() -> None:
    whole = response(TEXT)

    assert await faulty("", whole).complete(asked()) is whole


class Closing(ScriptedProvider):
    """A provider that knows whether it was closed."""

    closed = False

    async def aclose(self) -> None:
        self.closed = True


async def test_count_and_close_are_delegated() -> None:
    inner = Closing([])
    provider = FaultyProvider(inner, Faults.parse("cut=100%"), "seed")

    assert await provider.count_tokens(asked()) == await inner.count_tokens(asked())
    await provider.aclose()
    assert inner.closed


async def test_inner_provider_error_is_propagated() -> None:
    def fail(_: ModelRequest) -> ModelResponse:
        raise ProviderError(FailureKind.RATE_LIMIT, "slow down", sent=False)

    with pytest.raises(ProviderError, match="slow down"):
        await FaultyProvider(ScriptedProvider(fail), Faults.parse("cut=100%"), "seed").complete(asked())
