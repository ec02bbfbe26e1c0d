"""Our side of the kill matrix: a worker on Kafka, with claims and money on Redis and its log in a folder.

Run by `kill_matrix.py`: python -m benchmarks.kill_matrix_ours JSON, where the JSON is a `WorkerJob`. It serves until SIGTERM.
"""

import asyncio
import inspect
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from agentic_trading.bus.brokers.kafka.broker import KafkaBroker
from agentic_trading.bus.brokers.kafka.connection import KafkaSettings
from agentic_trading.clock import SystemClock
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import PriceBook
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Providers
from agentic_trading.llm.result import Usage
from agentic_trading.platform import port_adapters
from agentic_trading.worker.claims.redis import RedisClaimStore
from agentic_trading.worker.pool import WorkerPool
from agentic_trading.worker.recorder import Recorder
from agentic_trading.worker.runner import CallRunner, RunnerDependencies
from benchmarks.peers.billed import Point, die_at, post

MODEL = "scripted-1"
PRICES = Path(__file__).with_name("overspend_prices.json")
BUDGET_NUSD = 10**12
STEPS: dict[tuple[str, str], Point] = {
    ("ledger.reserve", "before"): "taken",
    ("provider.complete", "before"): "noted",
    ("provider.complete", "after"): "answered",
    ("store.store", "after"): "recorded",
    ("claims.finish", "before"): "replied",
}
"""Where the points of a call are among the steps of a worker; `billed` is the provider's to choose."""


@dataclass(frozen=True)
class WorkerJob:
    """Where a worker finds its servers and its log, and the point at which it is to die; without a port it answers by itself."""

    kafka: str
    redis: str
    namespace: str
    folder: str
    port: int
    point: str = ""
    workers: int = 4


class Mortal:
    """A port of a process that dies before or after a step."""

    def __init__(self, name: str, port: Any, point: str) -> None:
        self._name, self._port, self._point = name, port, point

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        steps = [STEPS.get((f"{self._name}.{name}", moment)) for moment in ("before", "after")]
        return self._taken(method, *steps) if any(steps) and inspect.iscoroutinefunction(method) else method

    def _taken(
        self, method: Callable[..., Awaitable[Any]], before: Point | None, after: Point | None
    ) -> Callable[..., Awaitable[Any]]:
        async def taken(*given: Any, **named: Any) -> Any:
            if before is not None:
                die_at(self._point, before)
            result = await method(*given, **named)
            if after is not None:
                die_at(self._point, after)
            return result

        return taken


class Paying:
    """The provider: the process of the matrix, which bills."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Make the call."""
        answer = await asyncio.to_thread(post, self._port, "/call", request.envelope.idempotency_key)
        text, tokens = answer["text"], int(answer["tokens"])
        if request.envelope.output_policy.require_sentinel:
            text = f'{text[:-1]},"end":"ok"}}'
        return ModelResponse(text, "end_turn", Usage(output_tokens=tokens), MODEL)

    async def count_tokens(self, request: ModelRequest) -> int | None:  # noqa: ARG002 - the port's signature
        """Return None: it does not count."""
        return None

    async def aclose(self) -> None:
        """Do nothing: each call has a connection of its own."""


def settings_of(servers: str, member: str = "") -> KafkaSettings:
    """Return settings with a name that a process keeps over its restart, and short waits."""
    return KafkaSettings(servers, member=member, session_s=6.0, drain_s=2.0)


def ledger_of(redis: str, namespace: str) -> RedisLedger:
    """Return the ledger of a run, with a limit on the tenant."""
    limit = Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=BUDGET_NUSD)
    return RedisLedger(redis, [limit], namespace=namespace)


async def serve(job: WorkerJob) -> None:
    """Work until SIGTERM."""
    prices, capabilities = PriceBook.load(PRICES), Capabilities.load()
    paying, clock = Paying(job.port), SystemClock()
    async with AsyncExitStack() as stack:
        broker = KafkaBroker(settings_of(job.kafka, "worker"))
        stack.push_async_callback(broker.aclose)
        claims = RedisClaimStore(job.redis, name="worker", log_id="one", namespace=job.namespace)
        stack.push_async_callback(claims.aclose)
        await claims.begin()
        ledger = ledger_of(job.redis, job.namespace)
        stack.push_async_callback(ledger.aclose)
        await ledger.open()
        store = port_adapters.log_for("paper", Path(job.folder) / "interactions.jsonl")
        await store.open()
        stack.push_async_callback(store.aclose)
        ports = {"ledger": ledger, "claims": claims, "store": store, "broker": broker, "provider": paying}
        mortal: dict[str, Any] = {name: Mortal(name, port, job.point) for name, port in ports.items()}
        recorder = Recorder(mortal["store"], mortal["broker"])
        gate = Gate(
            ledger=mortal["ledger"], prices=prices, capabilities=capabilities, clock=clock, mode="live"
        )
        runner = CallRunner(
            RunnerDependencies(
                gate=gate,
                providers=Providers.every(mortal["provider"]),
                recorder=recorder,
                capabilities=capabilities,
                clock=clock,
                checks={},
            )
        )
        pool = WorkerPool(
            broker=mortal["broker"],
            runner=runner,
            recorder=recorder,
            claims=mortal["claims"],
            clock=clock,
            workers=job.workers,
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, pool.stop)
        print("serves", flush=True)
        await pool.run()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(WorkerJob(**json.loads(sys.argv[1]))))
