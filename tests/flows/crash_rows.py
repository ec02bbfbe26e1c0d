"""The rows of a crash: steps at which deliveries stand when their worker is killed, and a worker process that brings each to its own.

Each row is an envelope of a tenant of its own. As a program it prints a row's tenant when its delivery has come to its step,
and stands there until it is killed. A row whose answer is lost goes on: its tenant is printed when it is acknowledged.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import structlog
from typing_extensions import override

from agentic_trading.bus.brokers.kafka.broker import KafkaBroker
from agentic_trading.bus.brokers.redis.broker import RedisBroker
from agentic_trading.bus.errors import BusUnavailableError
from agentic_trading.bus.topic import Broker
from agentic_trading.governance.errors import LedgerUnavailableError
from agentic_trading.governance.ledgers.degraded import DegradedModeLedger
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.redis import ScriptReply
from agentic_trading.llm import LLMEnvelope, ProviderError
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import ScriptedProvider, ScriptedReply
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore
from agentic_trading.worker.claim import ClaimKey, ClaimStoreUnavailableError
from agentic_trading.worker.claims.redis import RedisClaimStore
from agentic_trading.worker.pool import WorkerPool
from tests import kafka_server, redis_bus
from tests.gateway import START, gateway
from tests.worker.test_crashes import Moment, Process, answering, envelope_of
from tests.worker.ticking import Turning

LEASE_S = 4.0
"""Of a worker's claims: when it was killed, another one takes them over after it. A shorter one may be over on a busy machine."""

STEPS = [
    "poll",
    "claims.claim",
    "ledger.reserve",
    "claims.intend",
    "store.record",
    "ledger.dispatch",
    "provider.complete",
    "claims.keep",
    "ledger.settle",
    "store.store",
    "broker.publish",
    "claims.finish",
    "subscription.ack",
]
AGAIN = "-again"
AWAY: dict[str, Callable[[], Exception]] = {
    "claims": lambda: ClaimStoreUnavailableError("away"),
    "ledger": lambda: LedgerUnavailableError("away"),
    "broker": lambda: BusUnavailableError("away", "publishing"),
}
"""What a step of a server raises whose answer is lost."""


@dataclass(frozen=True)
class Row:
    """Which step of a delivery was the last one that its worker did, or (`is_lost`) which one's answer was lost.

    It is a step of the first attempt, or of a second one (`is_again`): the first is then refused by the provider.
    """

    step: str
    workflow: str
    is_lost: bool = False
    is_again: bool = False

    @property
    def tenant(self) -> str:
        return f"{self.step}{'-lost' * self.is_lost}{AGAIN * self.is_again}-{self.workflow}"

    @cached_property
    def envelope(self) -> LLMEnvelope:
        return envelope_of(self.workflow, tenant=self.tenant)

    @property
    def place(self) -> tuple[str, Moment]:
        """Where its delivery stands."""
        return ("claims.claim", "before") if self.step == "poll" else (self.step, "after")

    def has(self, step: str) -> bool:
        """Whether a step was done."""
        return STEPS.index(step) <= STEPS.index(self.step)

    @property
    def is_unsent(self) -> bool:
        """Whether the attempt was noted and surely not sent."""
        if self.is_lost:
            return self.step in {"claims.intend", "ledger.dispatch"}
        return self.has("claims.intend") and not self.has("ledger.dispatch")

    @property
    def is_in_doubt(self) -> bool:
        """Whether nobody can know whether the attempt was billed, and what was answered."""
        return not self.is_lost and self.has("ledger.dispatch") and not self.has("claims.keep")

    @property
    def ends_in_doubt(self) -> bool:
        """Whether that is the end: an order is not sent twice."""
        return self.is_in_doubt and self.workflow == "execution"

    @property
    def hold_is_lost(self) -> bool:
        """Whether something is held for a call that was refused: what may be another run's is left to its lease."""
        return self.is_lost and self.step in {"ledger.reserve", "ledger.dispatch"}

    @property
    def billed(self) -> list[int]:
        """The attempts that the provider has answered in the end: two where the first answer was lost with the worker."""
        this = 1 + self.is_again
        if self.hold_is_lost:
            return []
        if self.is_unsent:
            return [this + 1]
        if self.is_in_doubt:
            return [this] * self.has("provider.complete") + [this + 1] * (self.workflow == "analysis")
        return [this]


ROWS = [
    Row(step, workflow, is_lost)
    for workflow in ("analysis", "execution")
    for step in STEPS
    for is_lost in (False, True)
    if not is_lost or step.partition(".")[0] in AWAY
]
ROWS += [Row(step, "analysis", is_again=True) for step in STEPS[STEPS.index("ledger.reserve") :]]
_ROW: ContextVar[Row | None] = ContextVar("row", default=None)


class Standing(Process):
    """A process in which each delivery comes to the step of its row and goes on no further."""

    def __init__(self, rows: Sequence[Row], say: Callable[[str], None]) -> None:
        super().__init__()
        self._rows = {row.tenant: row for row in rows}
        self._say = say
        self._lost: set[Row] = set()
        self._attempts = Counter[Row]()
        self.subscriptions: list[Any] = []

    @override
    def port(self, name: str, port: Any) -> Any:
        if name == "subscription":
            self.subscriptions.append(port)
        return super().port(name, port)

    @override
    async def reached(self, step: str, moment: Moment, given: Sequence[Any] = ()) -> None:
        if self.is_dead:
            raise asyncio.CancelledError
        row = self._row(step, moment, given)
        if row is None:
            return
        if not row.is_lost:
            if (step, moment) == row.place:
                self._say(row.tenant)
                await asyncio.Event().wait()
        elif (step, moment) == (row.step, "lost") and row not in self._lost:
            self._lost.add(row)
            error = AWAY[step.partition(".")[0]]()
            raise error
        elif (step, moment) == ("subscription.ack", "after"):
            self._say(row.tenant)

    def _row(self, step: str, moment: Moment, given: Sequence[Any]) -> Row | None:
        """Return the row of this delivery, unless it is at an attempt before the one of its row."""
        if (step, moment) == ("claims.claim", "before"):
            _ROW.set(self._rows.get(given[0].tenant))
        row = _ROW.get()
        if row is None:
            return None
        self._attempts[row] += (step, moment) == ("ledger.reserve", "before")
        return row if not row.is_again or self._attempts[row] > 1 else None


def _answering(request: ModelRequest) -> ScriptedReply:
    if AGAIN in request.envelope.tenant_id and request.attempt == 1:
        return ProviderError(FailureKind.RATE_LIMIT, "later", sent=False)
    return answering(request)


class Billing(ScriptedProvider):
    """Bills every answer, on an invoice that outlives who asked."""

    def __init__(self, invoice: Path) -> None:
        super().__init__(_answering)
        self._invoice = invoice

    @override
    async def complete(self, request: ModelRequest) -> ModelResponse:
        answer = await super().complete(request)
        await asyncio.to_thread(self._bill, f"{request.envelope.tenant_id} {request.attempt}\n")
        return answer

    def _bill(self, line: str) -> None:
        with self._invoice.open("a", encoding="utf-8") as file:
            file.write(line)


class Losing(RedisClaimStore):
    """The answer of the server is lost before the store has it."""

    def __init__(self, process: Process, url: str, **more: Any) -> None:
        super().__init__(url, **more)
        self._of = process

    @override
    async def _run(self, step: str, key: ClaimKey, *given: str | bytes | int) -> ScriptReply:
        reply = await super()._run(step, key, *given)
        await self._of.reached(f"claims.{step}", "lost")
        return reply


@dataclass(frozen=True)
class Ports:
    """What a worker has: shared with others, but for its log."""

    broker: Broker
    ledger: Any
    claims: Any
    log: Any

    def pool(self, process: Process, invoice: Path) -> WorkerPool:
        """Return a worker with a slot for every row."""
        clock: Any = Turning(START)
        ledger: Any = DegradedModeLedger(process.port("ledger", self.ledger), clock=clock)
        desk = gateway(
            process.port("provider", Billing(invoice)),
            store=process.port("store", self.log),
            broker=process.port("broker", self.broker),
            ledger=ledger,
            claims=process.port("claims", self.claims),
            clock=clock,
            workers=len(ROWS) // 2,
        )
        return desk.pool


class Servers(AsyncExitStack):
    """Where a fleet keeps its things: a bus (`kafka://HOST:PORT`, or the URL of a Redis), a Redis, and a folder."""

    def __init__(self, bus: str, redis: str, namespace: str, folder: Path) -> None:
        super().__init__()
        self.bus, self.redis, self.namespace, self.folder = bus, redis, namespace, folder

    @property
    def kafka(self) -> str:
        """Return the Kafka servers, if the bus is one."""
        return self.bus.removeprefix("kafka://") if self.bus.startswith("kafka://") else ""

    def broker(self, **changes: Any) -> Broker:
        opened: KafkaBroker | RedisBroker
        if self.kafka:
            opened = kafka_server.broker(self.kafka, namespace=self.namespace, **changes)
        else:
            opened = redis_bus.broker(self.bus, self.namespace)
        self.push_async_callback(opened.aclose)
        return opened

    async def ports(self, name: str, process: Process) -> Ports:
        """Open what the worker of a name has; it keeps its log over a restart."""
        ledger = await asyncio.to_thread(RedisLedger, self.redis, namespace=self.namespace)
        make_claims = partial(
            Losing,
            process,
            self.redis,
            name=name,
            log_id=f"log of {name}",
            namespace=self.namespace,
            lease_s=LEASE_S,
        )
        claims = await asyncio.to_thread(make_claims)
        log = await asyncio.to_thread(JsonFileInteractionStore, self.folder / name / "interactions.jsonl")
        for opened in (log, ledger, claims):
            self.push_async_callback(opened.aclose)
        await claims.begin()
        return Ports(self.broker(member=name), ledger, claims, log)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def stand(bus: str, redis: str, namespace: str, folder: str, name: str) -> None:
    """Bring every row to its step, and stand there."""
    servers = Servers(bus, redis, namespace, Path(folder))
    process = Standing(ROWS, say)
    ports = await servers.ports(name, process)
    await ports.pool(process, servers.folder / "invoice").run()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    asyncio.run(stand(*sys.argv[1:]))
