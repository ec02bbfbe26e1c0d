"""Level `recorded` in several processes: the first accepted answer is the answer of all who share the place where it is kept."""

from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from agentic_trading.clock import SimClock
from agentic_trading.llm.provider import Providers
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.worker.claim import ClaimKey, ClaimStore, ClaimStoreUnavailableError
from agentic_trading.worker.claims.memory import MemoryClaimStore
from agentic_trading.worker.response_cache import ResponseCache
from agentic_trading.worker.runner import CallRunner, RunnerDependencies
from tests.gateway import CAPABILITIES, GOOD, START, gateway
from tests.worker.caching import DEADLINE, OTHER, fixed


def process(shared: ClaimStore, *answers: str, clock: SimClock | None = None) -> tuple[CallRunner, Any]:
    """Return the runner of a process, and its provider."""
    provider = ScriptedProvider(answers)
    desk = gateway(provider, clock=clock)
    parts = RunnerDependencies(
        gate=desk.gate,
        providers=Providers.every(provider),
        recorder=desk.recorder,
        capabilities=CAPABILITIES,
        clock=desk.clock,
        checks={},
        response_cache=ResponseCache(desk.clock, shared=shared),
    )
    return CallRunner(parts), provider


@pytest.mark.parametrize("deadline", [None, DEADLINE])
async def test_answer_is_shared_across_processes(
    deadline: Any,
) -> None:
    def asked() -> Any:
        return (fixed().with_deadline(deadline) if deadline else fixed()).build()

    shared = MemoryClaimStore()
    (one, asked_of_one), (two, asked_of_two) = process(shared, "not json", GOOD), process(shared, OTHER)

    first = (await one.run(asked())).result
    second, third = [(await two.run(asked())).result for _ in range(2)]

    assert first.success
    assert second.parsed_output == third.parsed_output == first.parsed_output
    assert (second.served_from, second.cost_nusd) == ("recorded", 0)
    assert (len(asked_of_one.requests), len(asked_of_two.requests)) == (2, 0)


async def test_shared_answer_expires_at_first_deadline() -> None:
    clock, shared = SimClock(START), MemoryClaimStore()
    one, _ = process(shared, GOOD, clock=clock)
    two, provider = process(shared, OTHER, clock=clock)
    await one.run(fixed(clock=clock).with_deadline(DEADLINE).build())
    clock.advance_to(DEADLINE)

    later = (await two.run(fixed(clock=clock).with_deadline(DEADLINE + timedelta(minutes=5)).build())).result

    assert later.served_from == "live"
    assert len(provider.requests) == 1


async def test_first_of_concurrent_answers_is_kept() -> None:
    class AskedAtOnce(MemoryClaimStore):
        looks = 0

        async def frozen(self, key: ClaimKey) -> bytes:
            self.looks += 1
            return b"" if self.looks <= 2 else await super().frozen(key)

    shared = AskedAtOnce()
    (one, _), (two, provider) = process(shared, GOOD), process(shared, OTHER)
    first = (await one.run(fixed().build())).result

    at_once, later = [(await two.run(fixed().build())).result for _ in range(2)]

    assert (at_once.served_from, len(provider.requests)) == ("live", 1)
    assert at_once.parsed_output != first.parsed_output
    assert later.parsed_output == first.parsed_output


async def test_unshareable_answer_is_cached_locally() -> None:
    class Away(MemoryClaimStore):
        async def freeze(self, key: ClaimKey, answer: bytes, keep_s: float) -> bytes:
            raise ClaimStoreUnavailableError("connection refused")

    runner, provider = process(Away(), GOOD)
    with capture_logs() as logs:
        answers = [(await runner.run(fixed().build())).result for _ in range(2)]

    assert answers[0].parsed_output == answers[1].parsed_output
    assert len(provider.requests) == 1
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["answer_not_shared"]
