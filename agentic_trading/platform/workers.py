"""Create the workers of a platform from its open ports, run them, and stop them."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Protocol

from agentic_trading.bus.errors import BusError
from agentic_trading.bus.topic import Broker, BrokerStatistics
from agentic_trading.cancellation import run_shielded
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance.burn_rate import Alerts, BurnRateMeter
from agentic_trading.governance.controls_document import ControlStore
from agentic_trading.governance.errors import LedgerError
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledger import Ledger, LedgerCheckpoint, LedgerStatistics
from agentic_trading.governance.limiter import Limiter, Throttle
from agentic_trading.governance.limits import Windows
from agentic_trading.governance.rebuild import LostAttempt, rollback_error
from agentic_trading.governance.rules import SIMULATED
from agentic_trading.governance.status_feed import StatusFeed
from agentic_trading.ids import random_id
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.provider import Providers, ToolDefinition
from agentic_trading.llm.store import InteractionStore
from agentic_trading.llm.taps import Tap
from agentic_trading.logger import get_logger
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.tables import LoadedFiles
from agentic_trading.worker.attempt_statistics import AttemptCounter
from agentic_trading.worker.call_context import CallChecks, Checks
from agentic_trading.worker.claim import ClaimStore
from agentic_trading.worker.delivery import AsOfClock, ProducerAcl, SendAge
from agentic_trading.worker.housekeeping import Housekeeper, HousekeepingScope
from agentic_trading.worker.outbox import Outbox
from agentic_trading.worker.pool import PoolStatistics, WorkerPool
from agentic_trading.worker.recorder import Recorder
from agentic_trading.worker.response_cache import ResponseCache
from agentic_trading.worker.runner import CallRunner, RecordedAnswerSource, RunnerDependencies

log = get_logger()

REPORTING_WITHIN: Final = timedelta(seconds=10)
"""A worker without a report for so long counts as silent."""

CANCELLED_WITHIN_S: Final = 2.0
"""Seconds that calls in flight have after a cancellation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPorts:
    """The open ports of a platform, from which its workers are created."""

    files: LoadedFiles
    store: InteractionStore
    broker: Broker
    claims: ClaimStore
    ledger: Ledger
    controls: ControlStore | None
    statuses: StatusFeed | None
    limiter: Limiter | None
    providers: Providers
    clock: Clock
    lost: Mapping[str, LostAttempt]
    cache: ResponseCache
    checks: Checks
    call_checks: CallChecks
    unnamed_checks: Mapping[str, str]
    recorded: RecordedAnswerSource | None
    counts: bool
    tools: Mapping[str, ToolDefinition]
    outbox: Outbox | None = None
    taps: Mapping[str, Tap] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlatformStatistics:
    """Counts since a platform was opened, by part."""

    pool: PoolStatistics
    bus: BrokerStatistics
    ledger: LedgerStatistics
    keys_unread_s: float | None = None
    """Seconds since the folder of signing keys was last read. None if messages are not signed."""
    unshipped: int | None = None
    """Sealed segments of the log that are not shipped yet. None without a sealed command."""


class ShippedLog(Protocol):
    """A log whose sealed segments may be shipped."""

    def unshipped(self) -> int | None:
        """Return the number of sealed segments that are not shipped yet. None without a sealed command."""
        ...


@dataclass(frozen=True, slots=True)
class RunningPorts:
    """The parts of an open platform that report its state."""

    pool: WorkerPool
    opened: OpenPorts
    tenants: Sequence[str]
    log: ShippedLog | None
    _seen: dict[str, LedgerCheckpoint] = field(default_factory=dict)

    def statistics(self) -> PlatformStatistics:
        """Return the counts so far."""
        opened, signing = self.opened, self.opened.files.signing
        return PlatformStatistics(
            self.pool.statistics(),
            opened.broker.statistics(),
            opened.ledger.statistics(),
            None if signing is None else signing.unread_s,
            None if self.log is None else self.log.unshipped(),
        )

    async def reporting(self) -> Mapping[str, int]:
        """Return the number of workers that have reported in the last `REPORTING_WITHIN`, by tenant."""
        return {} if self.opened.statuses is None else await reporting_to(self.opened.statuses, self.tenants)

    async def problems(self) -> Mapping[str, str]:
        """Check whether the parts can be used now.

        Returns:
            The reason for each unusable part: `bus`, `ledger`, `stream`. A ledger that was rolled back since
            the last check counts as unusable.

        """
        found = {}
        try:
            await self.opened.broker.check(self.pool.topics)
        except BusError as e:
            found["bus"] = str(e)
        try:
            for tenant in self.tenants:
                now = await self.opened.ledger.checkpoint(tenant)
                known = self._seen.setdefault(tenant, now)
                if (gone := rollback_error(tenant, known, now)) is not None:
                    raise gone
                self._seen[tenant] = now
        except LedgerError as e:
            found["ledger"] = str(e)
        if (outbox := self.opened.outbox) is not None and (problem := outbox.problem):
            found["stream"] = problem
        return found


async def reporting_to(statuses: StatusFeed, tenants: Iterable[str]) -> Mapping[str, int]:
    """Return the number of workers that have reported to a feed in the last `REPORTING_WITHIN`, by tenant."""
    since = SystemClock().now() - REPORTING_WITHIN
    return {
        tenant: sum(one.is_running and one.time > since for one in await statuses.read(tenant))
        for tenant in tenants
    }


def worker_pool_of(config: PlatformConfig, opened: OpenPorts) -> WorkerPool:
    """Return the worker pool of a platform. It does not run yet."""
    files, clock = opened.files, opened.clock
    stream = None if config.ack_after == "store" else opened.outbox
    recorder, wall = Recorder(opened.store, opened.broker, config.redaction, stream), SystemClock()
    gate = Gate(
        ledger=opened.ledger,
        prices=files.tables.prices,
        capabilities=files.tables.capabilities,
        clock=clock,
        mode=config.mode,
        wall=wall,
        tenants=frozenset(config.tenant_ids),
        providers=opened.providers.names,
        policy=files.policy,
        throttle=Throttle(opened.limiter, wall),
        is_shared=config.ledger.url is not None,
    )
    parts = RunnerDependencies(
        gate=gate,
        providers=opened.providers,
        recorder=recorder,
        capabilities=files.tables.capabilities,
        clock=clock,
        checks=opened.checks,
        call_checks=opened.call_checks,
        taps=opened.taps,
        unnamed_checks=opened.unnamed_checks,
        recorded=opened.recorded,
        lost=opened.lost,
        response_cache=opened.cache,
        counted_workflows=frozenset(EnvelopeWorkflow if opened.counts else ()),
        tools=opened.tools,
        controls=opened.controls,
        counter=AttemptCounter(
            config.tenant_ids, {(str(row.provider), row.model) for row in files.tables.capabilities}
        ),
    )
    return WorkerPool(
        broker=opened.broker,
        runner=CallRunner(parts),
        recorder=recorder,
        claims=opened.claims,
        clock=clock,
        workers=config.concurrency,
        housekeeper=_housekeeper(config, opened, gate, recorder),
        acl=ProducerAcl(files.verifier, config.sign_as, files.policy),
        workflows=config.workflows,
        lanes=sorted({row.lane for row in config.providers.values()} or {""}),
        age=SendAge(wall, config.mode in SIMULATED),
    )


def _housekeeper(
    config: PlatformConfig, opened: OpenPorts, gate: Gate, recorder: Recorder
) -> Housekeeper | None:
    """Return the task that reads operator commands and reports, or None without stores."""
    if opened.controls is None or opened.statuses is None:
        return None
    is_shared = config.ledger.url is not None
    scope = HousekeepingScope(
        opened.ledger, gate, opened.controls, opened.statuses, config.tenant_ids,
        outlives=is_shared, windows_by=SystemClock() if is_shared and config.mode not in SIMULATED else None,
        has_present=not isinstance(opened.clock, AsOfClock),
    )  # fmt: skip
    name = (config.name or "worker") + (f"-{random_id()[:8]}" if is_shared else "")
    meter = BurnRateMeter(Windows(opened.files.zone))
    return Housekeeper(scope, meter, recorder, opened.clock, SystemClock(), name, Alerts())


@asynccontextmanager
async def running(pool: WorkerPool, *, drain_s: float | None = None) -> AsyncGenerator[None]:
    """Run a pool. Leaving the block, also after an error, finishes the calls in flight and keeps all records.

    After `drain_s` seconds, unfinished calls are cancelled: they are on record, and their money is charged or
    in doubt. A cancellation of the block gives calls in flight `CANCELLED_WITHIN_S` seconds, and then cancels
    them.
    """
    async with asyncio.TaskGroup() as group:
        work = group.create_task(pool.run(), name="worker-pool")
        try:
            yield
        except BaseException as e:
            # Otherwise the group would cancel the pool, and events that are not stored yet would be lost.
            pool.stop()
            if isinstance(e, Exception):
                await asyncio.wait([work])
            else:
                await run_shielded(asyncio.wait([work], timeout=CANCELLED_WITHIN_S))
            raise
        pool.stop()
        if drain_s is not None:
            await asyncio.wait([work], timeout=drain_s)
            if not work.done():
                log.warning("drain_ended", after_s=drain_s)
                work.cancel()
