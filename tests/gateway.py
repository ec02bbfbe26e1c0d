"""A whole gateway in memory, with a provider that answers from a script."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.topic import Broker
from agentic_trading.client.gateway import GatewayReply
from agentic_trading.client.outcome import StructuredOutcome, outcome_of, outcome_without_answer
from agentic_trading.clock import Clock, SimClock
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limiter import Throttle
from agentic_trading.governance.limits import Limit
from agentic_trading.governance.policy import Policy
from agentic_trading.governance.prices import PriceBook
from agentic_trading.governance.rebuild import LostAttempt
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind, NoDecision, ProviderError
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelRequest, Provider, Providers
from agentic_trading.llm.providers.offline import ScriptedProvider, ScriptedReply
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.structured.pydantic_schema import SemanticCheck
from agentic_trading.worker.call_context import Checks
from agentic_trading.worker.claim import ClaimStore
from agentic_trading.worker.claims.memory import MemoryClaimStore
from agentic_trading.worker.delivery import SendAge
from agentic_trading.worker.pool import WorkerPool
from agentic_trading.worker.recorder import Recorder, RecordStream
from agentic_trading.worker.runner import CallRunner, RecordedAnswerSource, RunnerDependencies

CAPABILITIES = Capabilities.load()  # before a loop runs: tables are read from files
PRICES = PriceBook.load()
START = datetime(2026, 1, 2, tzinfo=UTC)
SCHEMA = {
    "$id": "advice.v1",
    "type": "object",
    "required": ["action", "size"],
    "additionalProperties": False,
    "properties": {
        "action": {"enum": ["buy", "sell", "wait"]},
        "size": {"type": "number", "minimum": 0, "maximum": 10},
    },
}
OF_ANY_AGE = SendAge(is_created_at_simulated=True)
"""The age limit of a worker whose envelopes were created in simulated time, as those of most tests are."""

GOOD = '{"action":"buy","size":1.50}'
Script = Iterable[ScriptedReply] | Callable[[ModelRequest], ScriptedReply]


def asking(workflow: str = "analysis", **more: Any) -> EnvelopeBuilder:
    """Return a builder for a call that the scripted model can answer."""
    builder = EnvelopeBuilder(clock=more.pop("clock", None) or SimClock(START))
    getattr(builder, f"for_{workflow}")()
    builder.with_instructions("Advise.").with_output_schema(SCHEMA).with_agent("adviser-1", "adviser")
    builder.with_budget(max_output_tokens=200)
    return builder.with_provider(LLMProvider.SCRIPTED, more.pop("model", "scripted-1")).with_context(more)


def timed_out() -> ProviderError:
    """Return a time-out after the request had left."""
    return ProviderError(FailureKind.TIMEOUT, "no answer", sent=True)


def not_connected() -> ProviderError:
    """Return a failure before anything was sent."""
    return ProviderError(FailureKind.SERVER_ERROR, "connection refused", sent=False)


class AskedEitherWay:
    """Adds `ask_structured` to a stub of a gateway that has `ask`. Its check is not run."""

    async def ask(self, asked: LLMEnvelope) -> GatewayReply:
        raise NotImplementedError

    async def ask_structured(
        self, asked: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Return the answer of `ask` as an outcome."""
        answer = await self.ask(asked)
        if isinstance(answer, NoDecision):
            return outcome_without_answer(answer, [])
        return outcome_of([answer])


@dataclass(frozen=True)
class MemoryGateway:
    """The pieces of a gateway, wired together."""

    clock: Clock
    store: MemoryInteractionStore
    broker: Broker
    ledger: MemoryLedger
    gate: Gate
    provider: Provider
    recorder: Recorder
    runner: CallRunner
    pool: WorkerPool


def gateway(
    script: Script | Provider | Providers = (),
    *,
    limits: Iterable[Limit] = (),
    clock: Clock | None = None,
    checks: Checks | None = None,
    lost: Mapping[str, LostAttempt] | None = None,
    recorded: RecordedAnswerSource | None = None,
    store: Any = None,
    broker: Broker | None = None,
    claims: ClaimStore | None = None,
    ledger: MemoryLedger | None = None,
    workers: int = 4,
    capabilities: Capabilities = CAPABILITIES,
    policy: Policy | None = None,
    throttle: Throttle | None = None,
    stream: RecordStream | None = None,
) -> MemoryGateway:
    """Return a gateway in memory; `script` is what its provider answers, or the provider, or several by name."""
    clock = clock or SimClock(START)
    provider: Any = script if hasattr(script, "aclose") else ScriptedProvider(script)
    providers = script if isinstance(script, Providers) else Providers.every(provider)
    store = store or MemoryInteractionStore()
    broker, ledger = broker or MemoryBroker(), ledger or MemoryLedger(limits)
    gate = Gate(
        ledger=ledger,
        prices=PRICES,
        capabilities=capabilities,
        clock=clock,
        mode="paper",
        providers=providers.names,
        policy=policy,
        throttle=throttle,
    )
    recorder = Recorder(store, broker, stream=stream)
    parts = RunnerDependencies(
        gate=gate,
        providers=providers,
        recorder=recorder,
        capabilities=capabilities,
        clock=clock,
        checks=checks or {},
        recorded=recorded,
        lost=lost or {},
    )
    runner = CallRunner(parts)
    pool = WorkerPool(
        broker=broker,
        runner=runner,
        recorder=recorder,
        claims=claims or MemoryClaimStore(),
        clock=clock,
        workers=workers,
        age=OF_ANY_AGE,
    )
    return MemoryGateway(clock, store, broker, ledger, gate, provider, recorder, runner, pool)


def held(balances: Iterable[Any]) -> Mapping[str, int]:
    """Return what calls in flight hold, by unit, over all counters."""
    total = {"nusd": 0, "tokens": 0, "calls": 0}
    for balance in balances:
        for unit in total:
            total[unit] += getattr(balance.held, unit)
    return total


async def attempts(desk: MemoryGateway, envelope: LLMEnvelope) -> list[LLMInteraction]:
    """Return what the log holds of an envelope, oldest first."""
    return [one for one in await desk.store.get_by_trace_id(envelope.trace_id) if one.envelope == envelope]
