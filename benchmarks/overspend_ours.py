"""Our side of spending: each call goes through `CallRunner`, the gate and the Redis ledger to the stub provider.

Run by `overspend_fleet.py`: python -m benchmarks.overspend_ours spend URL PORT, or steps URL WAY.
"""

import asyncio
import logging
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

import structlog
from typing_extensions import override

from agentic_trading.clock import SimClock, SystemClock
from agentic_trading.governance.admission import Deferred
from agentic_trading.governance.errors import LedgerError, LedgerUnavailableError
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledger import Ledger, Reservation, ReservationRequest
from agentic_trading.governance.ledgers.degraded import DegradedModeLedger
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount, PriceBook
from agentic_trading.ids import seeded_ids
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Providers
from agentic_trading.llm.result import LLMResult, Usage
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.error_boundary import AttemptTakenError
from agentic_trading.worker.recorder import Recorder
from agentic_trading.worker.runner import CallRunner, RunnerDependencies
from benchmarks.peers.load import LOADS, NUSD_PER_TOKEN, Load, billed_as
from benchmarks.peers.paid import Provider
from benchmarks.peers.spending import Opening, Outcome, Spender, Told, answer_calls, answer_steps

MODEL = "scripted-1"
LEASE_S = 3.0
"""A run of half a minute cannot wait for leases of a minute and more; nothing else about them is changed."""
AGAIN_S = 0.05
SWEEP_S = 0.25
CLOCK = SystemClock()
BUILT = datetime(2026, 1, 2, tzinfo=UTC)
CAPABILITIES = Capabilities.load()
PRICES = PriceBook.load(Path(__file__).with_name("overspend_prices.json"))
MOST = 2**53
_WINDOWS = {
    ScopeKind.CALL: Window.NONE,
    ScopeKind.TRACE: Window.NONE,
    ScopeKind.AGENT: Window.DAY,
    ScopeKind.WORKFLOW: Window.DAY,
    ScopeKind.TENANT: Window.DAY,
}
ANSWER = '{"action":"wait","size":0}'
SCHEMA = {
    "$id": "advice.v1",
    "type": "object",
    "required": ["action", "size"],
    "additionalProperties": False,
    "properties": {"action": {"enum": ["buy", "sell", "wait"]}, "size": {"type": "number"}},
}


class BrieflyLeased(RedisLedger):
    """The ledger with leases that end within the run."""

    @override
    async def dispatch(self, reservation_id: str, *, lease_s: float = LEASE_S) -> None:
        """Note that the request is about to be sent."""
        await super().dispatch(reservation_id, lease_s=min(lease_s, LEASE_S))


class TimedGate(Gate):
    """The gate, with how long each call was parked."""

    waited_s: defaultdict[str, float]

    @override
    async def headroom(self, parked: Deferred) -> None:
        """Wait until the parked attempt can be answered for good."""
        started = time.perf_counter()
        try:
            await super().headroom(parked)
        finally:
            self.waited_s[parked.envelope.envelope_id] += time.perf_counter() - started


class Unkept(MemoryInteractionStore):
    """A log that forgets: a call that the ledger was not there for is asked for again as it is, here without end."""

    @override
    async def store(self, interaction: LLMInteraction) -> int:
        """Keep nothing."""
        return 0


class Paying:
    """The provider: the stub's process, which bills."""

    def __init__(self, stub: Provider, load: Load) -> None:
        self._stub = stub
        self._load = load

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Make the call; its usage is what the stub says."""
        tokens = await self._stub.call(
            self._load.name, billed_as(request.envelope.idempotency_key, request.attempt)
        )
        return ModelResponse(ANSWER, "end_turn", Usage(output_tokens=tokens), MODEL)

    async def count_tokens(self, request: ModelRequest) -> int | None:  # noqa: ARG002 - the port's signature
        """Return None: it does not count."""
        return None

    async def aclose(self) -> None:
        """Do nothing: connections end with the process."""


def ledger_of(url: str, opening: Opening) -> RedisLedger:
    """Return the ledger of a run: its budget is on the tenant of its name."""
    limit = Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=opening.budget_nusd)
    return BrieflyLeased(url, [limit], namespace=opening.run, reserved_lease_s=LEASE_S)


def envelope_of(opening: Opening, number: int) -> LLMEnvelope:
    """Build the envelope of a call: the same one wherever it is delivered."""
    return (
        EnvelopeBuilder(clock=SimClock(BUILT), ids=seeded_ids(f"{opening.run}:{number}"))
        .for_analysis()
        .with_instructions("Advise.")
        .with_output_schema(SCHEMA)
        .with_agent("adviser-1", "adviser")
        .with_provider(LLMProvider.SCRIPTED, MODEL)
        .with_budget(max_output_tokens=LOADS[opening.load].cap, thinking_budget=0)
        .with_tenant(opening.run)
        .with_idempotency_key(f"call-{number}")
        .build()
    )


class Desk:
    """Makes calls, and makes them again until the ledger is there to answer."""

    def __init__(self, opening: Opening, ledger: Ledger, stub: Provider) -> None:
        self._opening = opening
        self._gate = TimedGate(
            ledger=ledger, prices=PRICES, capabilities=CAPABILITIES, clock=CLOCK, mode="live"
        )
        self._gate.waited_s = defaultdict(float)
        self._runner = CallRunner(
            RunnerDependencies(
                gate=self._gate,
                providers=Providers.every(Paying(stub, LOADS[opening.load])),
                recorder=Recorder(Unkept()),
                capabilities=CAPABILITIES,
                clock=CLOCK,
                checks={},
            )
        )

    async def spend(self, number: int) -> Told:
        """Make a call; how often it had to be asked for is told."""
        envelope = envelope_of(self._opening, number)
        asked = 0
        result: LLMResult | None = None
        while result is None or _is_ledger_away(result):
            if asked:
                await asyncio.sleep(AGAIN_S)
            asked += 1
            try:
                result = (await self._runner.run(envelope)).result
            except LedgerUnavailableError:
                continue
            except AttemptTakenError as e:
                return Told(number, "taken", asked=asked, why=str(e))
        attempts = result.attempt_number
        waited_ms = self._gate.waited_s.pop(envelope.envelope_id, 0.0) * 1000
        nusd, reserved = result.cost_nusd, result.reserved_nusd
        return Told(number, _outcome(result), nusd, reserved, waited_ms, asked, attempts, _why(result))


def _is_ledger_away(result: LLMResult) -> bool:
    return result.failure is not None and result.failure.category is FailureKind.LEDGER_UNAVAILABLE


def _outcome(result: LLMResult) -> Outcome:
    if result.in_doubt:
        return "in_doubt"
    if result.success:
        return "paid"
    spent = result.failure is not None and result.failure.category is FailureKind.BUDGET_EXHAUSTED
    return "refused" if spent else "broke"


def _why(result: LLMResult) -> str:
    return "" if result.failure is None else result.failure.description[:200]


async def expire_leases(ledger: Ledger) -> None:
    """End what has run out and book what could not be booked, now and then."""
    while True:
        await asyncio.sleep(SWEEP_S)
        with suppress(LedgerError):
            await ledger.expire_leases()


class Scoped:
    """The ledger's three steps alone, as an ask of the gate takes them: five scopes, all of them with a ceiling."""

    def __init__(self, ledger: RedisLedger, load: Load) -> None:
        self._ledger = ledger
        self._load = load

    async def take(self, call: str) -> str | None:
        """Reserve and dispatch; return the reservation's id."""
        scopes = {
            ScopeKind.CALL: call,
            ScopeKind.TRACE: f"trace-{call}",
            ScopeKind.AGENT: "cmt-1",
            ScopeKind.WORKFLOW: "analysis",
            ScopeKind.TENANT: "default",
        }
        answer = await self._ledger.reserve(
            ReservationRequest(call, 1, scopes, Amount(self._load.most_nusd, self._load.cap))
        )
        if not isinstance(answer, Reservation):
            return None
        await self._ledger.dispatch(answer.id)
        return answer.id

    async def book(self, leave: str, call: str, nusd: int) -> None:  # noqa: ARG002 - the protocol's
        """Settle."""
        await self._ledger.settle(leave, Amount(nusd, nusd // NUSD_PER_TOKEN))

    async def aclose(self) -> None:
        """Close the connections of the ledger."""
        await self._ledger.aclose()


def steps_with(url: str) -> Callable[[Opening], Awaitable[Scoped]]:
    """Return what opens a ledger with a limit on every scope, or on the tenant alone."""

    async def opened(opening: Opening) -> Scoped:
        kinds = tuple(_WINDOWS) if opening.way == "every_scope" else (ScopeKind.TENANT,)
        limits = [Limit(kind, ANY, _WINDOWS[kind], nusd=MOST, tokens=MOST, calls=MOST) for kind in kinds]
        ledger = await asyncio.to_thread(RedisLedger, url, limits, namespace=opening.run)
        return Scoped(ledger, LOADS[opening.load])

    return opened


async def spend_calls(url: str, port: int) -> None:
    """Make the calls that are asked for, run after run, and sweep."""
    stub = Provider(port)
    async with AsyncExitStack() as ledgers, asyncio.TaskGroup() as group:
        swept: list[asyncio.Task[None]] = []

        async def opened(opening: Opening) -> Spender:
            on_the_server = ledger_of(url, opening)
            ledgers.push_async_callback(on_the_server.aclose)
            await on_the_server.open()
            ledger = DegradedModeLedger(on_the_server, clock=CLOCK)
            swept.append(group.create_task(expire_leases(ledger)))
            return Desk(opening, ledger, stub).spend

        await answer_calls(opened)
        for task in swept:
            task.cancel()


def main() -> None:
    """Spend, or take steps; logs as a program that uses this package would set them."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=True
    )
    mode, url, third = sys.argv[1:4]
    asyncio.run(answer_steps(third, steps_with(url)) if mode == "steps" else spend_calls(url, int(third)))


if __name__ == "__main__":
    main()
