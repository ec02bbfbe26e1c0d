"""What a replay notes while it plays: which calls had an answer, and the first that had none."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from agentic_trading.client.gateway import GatewayReply
from agentic_trading.desk.session.replay import (
    AskedRequest,
    NoDigestError,
    ObservedGateway,
    ReplayObservations,
    replay,
)
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.operate.session_folder import SessionFolder
from tests.build import envelope, event, interaction
from tests.gateway import AskedEitherWay
from tests.operate.test_session_folder import manifest

MISS = FailureReason(category=FailureKind.REPLAY_MISS, description="not on record")
REFUSED = FailureReason(category=FailureKind.REFUSAL, description="no")


class Answering(AskedEitherWay):
    """A gateway that gives the same answer to everybody."""

    def __init__(self, answer: GatewayReply) -> None:
        self._answer = answer
        self.asked: list[LLMEnvelope] = []
        self.recorded: list[Event] = []

    @override
    async def ask(self, asked: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None) -> GatewayReply:
        self.asked.append(asked)
        return self._answer

    async def record(self, fact: Event) -> None:
        self.recorded.append(fact)


def seen_of(*known: LLMEnvelope) -> ReplayObservations:
    return ReplayObservations(frozenset(map(AskedRequest.of, known)))


async def heard(
    answer: GatewayReply, *, known: Sequence[LLMEnvelope], asked: LLMEnvelope
) -> ReplayObservations:
    seen = seen_of(*known)
    await ObservedGateway(Answering(answer), seen, None).ask(asked)
    return seen


FAILED = {"success": False, "actionable": False, "validation_passed": False}


@pytest.mark.parametrize(
    ("answer", "is_answered"),
    [
        (interaction(), True),
        (interaction(failure=REFUSED, **FAILED), True),
        (NoDecision(reason=REFUSED), True),
        (interaction(failure=MISS, **FAILED), False),
        (NoDecision(reason=MISS), False),
    ],
)
async def test_recorded_failure_counts_as_answer(answer: GatewayReply, *, is_answered: bool) -> None:
    asked = envelope()

    seen = await heard(answer, known=[asked], asked=asked)

    assert (seen.answered, seen.missed) == ((1, []) if is_answered else (0, [asked]))


async def test_unrecorded_request_is_missed() -> None:
    asked = envelope()
    reason = FailureReason(category=FailureKind.INVALID_REQUEST, description="unknown model")

    seen = await heard(interaction(failure=reason, **FAILED), known=[], asked=asked)

    assert seen.first_missed == asked


@pytest.mark.parametrize("name", ["tenant_id", "agent_id", "step"])
async def test_request_of_other_call_is_missed(name: str) -> None:
    asked = envelope()

    seen = await heard(interaction(), known=[envelope(**{name: "other"})], asked=asked)

    assert seen.first_missed == asked


def test_first_missed_is_order_independent() -> None:
    first, second = envelope(subject="BTC"), envelope(subject="ETH")
    one, other = seen_of(), seen_of()

    for asked in (first, second):
        one.note(asked, MISS)
    for asked in (second, first):
        other.note(asked, MISS)

    assert one.first_missed == other.first_missed == first
    assert seen_of().first_missed is None


async def test_edit_changes_request_not_events() -> None:
    gateway, fact = Answering(interaction()), event()
    asked = envelope()

    def edit(one: LLMEnvelope) -> LLMEnvelope:
        return one.model_copy(update={"instructions": "Something else."})

    watched = ObservedGateway(gateway, seen_of(), edit)
    await watched.ask(asked)
    await watched.record(fact)

    assert [one.instructions for one in gateway.asked] == ["Something else."]
    assert gateway.recorded == [fact]


async def test_killed_run_has_no_digest(tmp_path: Path) -> None:
    await asyncio.to_thread(killed, tmp_path)

    with pytest.raises(NoDigestError, match=r"run 1 did not end\. Finish it with") as refused:
        await replay(tmp_path)

    assert (refused.value.session, refused.value.run) == (tmp_path, 1)


def killed(path: Path) -> None:
    """Leave what a run leaves that was killed at once."""
    SessionFolder(path).write_manifest(manifest())
