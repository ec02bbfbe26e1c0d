"""Recorded attempts are counted once, by labels from closed lists."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from agentic_trading import structured
from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.errors import BusUnavailableError, MessageTooLargeError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import REPLIES, Topic
from agentic_trading.clock import SimClock
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.result import AttemptTrace, Fix, Stage, Violation
from agentic_trading.worker.active_claim import ActiveClaim, key_of
from agentic_trading.worker.attempt_statistics import (
    CHANGES,
    MOST_CALLERS,
    OTHER,
    AttemptCounter,
    AttemptStatistics,
    Histogram,
)
from agentic_trading.worker.claim import Claim
from agentic_trading.worker.claims.memory import MemoryClaimStore
from agentic_trading.worker.error_boundary import AttemptTakenError, UndeliverableError, UnstreamedError
from agentic_trading.worker.recorder import ReplyRoute
from tests.build import NOW, interaction
from tests.gateway import GOOD, START, asking, gateway, timed_out
from tests.worker.ticking import Wall

MODEL = ("anthropic", "claude-sonnet-5-5")
LABELS = ("general", *MODEL)


def counted(
    *changes: dict[str, Any], tenants: tuple[str, ...] = ("default",), models: Any = (MODEL,)
) -> AttemptStatistics:
    """Return the statistics of attempts with these changes."""
    counter = AttemptCounter(tenants, models)
    for change in changes:
        counter.note(interaction(**{"workflow": EnvelopeWorkflow.GENERAL, "dispatched_at": NOW, **change}))
    return counter.statistics()


def test_histogram_counts_values_up_to_each_bound() -> None:
    histogram = Histogram((1.0, 2.0))

    for value in (0.5, 1.0, 1.5, 7.0):
        histogram.observe(value)

    sample = histogram.sample()
    assert (list(sample.up_to), sample.sum) == ([2, 3, 4], 10.0)


def test_sent_attempt_counts_tokens_cost_and_duration() -> None:
    found = counted({"cache_read_tokens": 7, "cache_write_5m_tokens": 1, "cache_write_1h_tokens": 2})

    caller = ("default", *LABELS)
    assert found.attempts == {(LABELS, "accepted"): 1}
    assert found.cost_nusd == {caller: 600_000}
    assert {kind: count for (_, kind), count in found.tokens.items()} == {
        "input": 100, "output": 20, "cache_read": 7, "cache_write": 3,
    }  # fmt: skip
    assert found.durations_s[LABELS].sum == 0.0125


def test_recorded_answer_counts_as_attempt_only() -> None:
    found = counted({"served_from": "recorded"})

    assert found.attempts == {(LABELS, "accepted"): 1}
    assert not (found.tokens)
    assert not (found.cost_nusd)
    assert not (found.durations_s)


def test_unsent_attempt_has_no_duration() -> None:
    refused = FailureReason(category=FailureKind.HALTED, description="halted")

    found = counted({"dispatched_at": None, "success": False, "failure": refused})

    assert found.attempts == {(LABELS, "halted"): 1}
    assert not (found.tokens)
    assert not (found.durations_s)


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (FailureReason(category=FailureKind.TIMEOUT, description="late"), "timeout"),
        (FailureReason(category=FailureKind("of_tomorrow"), description="?"), OTHER),
        (None, "internal_error"),
    ],
)
def test_failed_attempt_counts_by_known_kind(failure: FailureReason | None, outcome: str) -> None:
    found = counted({"success": False, "failure": failure})

    assert found.attempts == {(LABELS, outcome): 1}


def test_names_outside_the_lists_count_as_other() -> None:
    found = counted({"tenant_id": "acme", "model": "named-by-a-client"})

    other = ("general", OTHER, OTHER)
    assert found.attempts == {(other, "accepted"): 1}
    assert found.cost_nusd == {(OTHER, *other): 600_000}


def test_thousands_of_tenants_leave_bounded_callers() -> None:
    tenants = tuple(f"tenant-{number}" for number in range(MOST_CALLERS + 5))

    found = counted(*({"tenant_id": tenant} for tenant in (*tenants, tenants[0])), tenants=tenants)

    assert len(found.cost_nusd) == MOST_CALLERS + 1
    assert found.cost_nusd[OTHER, *LABELS] == 5 * 600_000
    assert found.cost_nusd[tenants[0], *LABELS] == 2 * 600_000


def test_changes_and_violations_count_by_kind() -> None:
    reading = AttemptTrace(
        parser="p", transport="text", verdict=Stage.DONE,
        fixes=(Fix(kind="fence", where="0"), Fix(kind="of_tomorrow", where="0")),
        coercions=(Fix(kind="integer", where="$"),), patches=(Fix(kind="dropped", where="$"),),
        errors=(
            Violation(path="$", keyword="enum", message="m"), Violation(path="$", keyword="own rule", message="m"),
        ),
    )  # fmt: skip

    found = counted({"reading": reading})

    assert found.changes == {"fence": 1, OTHER: 1, "integer": 1, "dropped": 1}
    assert found.violations == {"enum": 1, OTHER: 1}


def test_list_of_changes_has_every_kind_of_the_reader() -> None:
    folder = Path(structured.__file__).parent
    source = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))

    kinds = set(re.findall(r'(?:Fix\(kind=|\.fix\(|_fix\(|kinds\.add\()"(\w+)"', source))

    assert len(kinds) > 10
    assert kinds <= CHANGES


def test_wait_counts_by_workflow() -> None:
    clock = Wall(START)
    counter = AttemptCounter(clock=clock)

    with counter.waiting(EnvelopeWorkflow.ANALYSIS):
        clock.advance_to(START.replace(second=3))

    found = counter.statistics().waits_s
    assert (found["analysis"].up_to[-1], found["analysis"].sum) == (1, 3.0)
    assert found["general"].up_to[-1] == 0


class UnansweringBroker(MemoryBroker):
    """A broker whose first publish fails."""

    def __init__(self, problem: Exception) -> None:
        super().__init__()
        self._problems = [problem]

    @override
    async def publish(self, topic: Topic[Any], message: Message) -> None:
        if self._problems:
            raise self._problems.pop()
        await super().publish(topic, message)


class LateStream:
    """A stream on which the first line is not in time."""

    def __init__(self) -> None:
        self._asked = 0

    async def reached(self, seq: int) -> None:
        self._asked += 1
        if self._asked == 1:
            raise UnstreamedError(seq, "no answer")

    def stop(self) -> None:
        """Nothing waits."""


@pytest.mark.parametrize(
    ("problem", "raised"),
    [
        (BusUnavailableError("bus:9092", "no answer"), BusUnavailableError),
        (MessageTooLargeError(REPLIES.name, 10, 1), UndeliverableError),
    ],
    ids=["unavailable", "too_large"],
)
async def test_stored_attempt_counts_though_its_reply_fails(
    problem: Exception, raised: type[Exception]
) -> None:
    desk = gateway([GOOD], clock=SimClock(START), broker=UnansweringBroker(problem))

    with pytest.raises(raised):
        await desk.runner.run(asking().build(), route=ReplyRoute("back"))

    found = desk.runner.statistics()
    assert sum(found.attempts.values()) == 1
    assert sum(found.cost_nusd.values()) == desk.ledger.statistics().charged_nusd > 0


async def test_stored_attempt_counts_once_though_its_line_is_late() -> None:
    desk = gateway([GOOD], clock=SimClock(START), stream=LateStream())
    envelope = asking().build()

    with pytest.raises(UnstreamedError):
        await desk.runner.run(envelope)
    with pytest.raises(AttemptTakenError):
        await desk.runner.run(envelope)

    assert sum(desk.runner.statistics().attempts.values()) == 1


class StuckStream:
    """A stream that takes the first line only when the wait for it was cancelled."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def reached(self, seq: int) -> None:
        if not self.asked.is_set():
            self.asked.set()
            await asyncio.Event().wait()

    def stop(self) -> None:
        """Nothing to end."""


async def test_attempt_cancelled_after_its_record_counts_once() -> None:
    stream = StuckStream()
    desk = gateway([GOOD], clock=SimClock(START), stream=stream)

    async with asyncio.TaskGroup() as group:
        call = group.create_task(desk.runner.run(asking().build()))
        await stream.asked.wait()
        call.cancel()

    assert call.cancelled()
    assert sum(desk.runner.statistics().attempts.values()) == 1


async def test_attempt_on_record_is_counted_once() -> None:
    desk = gateway([timed_out(), GOOD], clock=SimClock(START))
    envelope = asking().build()

    await desk.runner.run(envelope)
    claims = MemoryClaimStore()  # of a server that has lost its claims
    claim = await claims.claim(key_of(envelope), envelope.envelope_hash)
    assert isinstance(claim, Claim)
    with pytest.raises(AttemptTakenError):
        await desk.runner.run(envelope, claim=ActiveClaim(claims, claim))

    assert sum(desk.runner.statistics().attempts.values()) == 2
    assert desk.recorder.durable_s.sample().up_to[-1] >= 2
