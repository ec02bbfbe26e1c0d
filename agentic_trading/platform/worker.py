"""A worker process: a platform that serves a shared bus until it is stopped, with its health and its figures."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import disk_usage
from socket import gethostname
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

from agentic_trading.bus.errors import BusUnavailableError, TopicSetupError
from agentic_trading.cancellation import on_first_signal
from agentic_trading.governance.errors import ControlsUnavailableError, LedgerUnavailableError
from agentic_trading.llm.errors import StoreError
from agentic_trading.logger import get_logger
from agentic_trading.platform import adapters
from agentic_trading.platform.config import BACKTEST_APART, PlatformConfig, TenantConfig
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.platform import Platform, Ports
from agentic_trading.platform.settings import load_config
from agentic_trading.platform.workers import PlatformStatistics
from agentic_trading.worker.claim import ClaimStoreUnavailableError
from agentic_trading.worker.delivery import AsOfClock
from agentic_trading.worker.outbox import OutboxLag

log = get_logger()

AWAY: Final = (
    BusUnavailableError,
    TopicSetupError,
    LedgerUnavailableError,
    ControlsUnavailableError,
    ClaimStoreUnavailableError,
)
"""What a worker waits for at its start instead of ending: servers that are away, topics that are not made yet, and a ledger
that was set back, until it is rebuilt."""

PARTS: Final = ("asking", "bus", "ledger", "start", "stream")
"""What may keep a worker from serving, in `Platform.problems` and before it is open: each has a figure while it does not, too."""

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 15.0
ASKED_WITHIN_S: Final = 5.0
LOOKS_EVERY_S: Final = 10.0
"""How often a worker looks for itself whether all servers answer; what has changed is logged."""

MOST_NAME: Final = 64


@dataclass(slots=True)
class WorkerProcess:
    """One worker: `state` is `starting`, `serving` or `stopping`; while it starts, `problem` says what it waits for.

    The configuration names a bus on servers. Calls under way have `drain_s` to end when it is stopped.
    """

    config: PlatformConfig
    drain_s: float
    state: str = "starting"
    problem: str = ""
    _reported: frozenset[str] = frozenset()
    _opening: Platform | None = None
    _platform: Platform | None = None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        """Take nothing more, end what is under way, and return from `run`. Harmless twice."""
        self.state = "stopping"
        self._stopping.set()

    async def run(
        self, on_serving: Callable[[], None] = lambda: None, on_signal: Callable[[], None] = lambda: None
    ) -> None:
        """Serve until `stop`, SIGINT or SIGTERM, which also calls `on_signal`; a second signal ends the process at once.

        Servers that are away, and topics that are missing, are waited for. Raises `ConfigError` for a configuration
        that cannot be had, `StoreError` for a log that cannot be used, and what else the platform raises.
        """

        def stop() -> None:
            self.stop()
            on_signal()

        with on_first_signal(stop):
            retrying = AsyncRetrying(
                retry=retry_if_exception_type(AWAY),
                wait=wait_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S),
                sleep=self._wait,
                before_sleep=self._note,
                reraise=True,
            )
            await retrying(self._serve, on_serving)

    async def _serve(self, on_serving: Callable[[], None]) -> None:
        if self._stopping.is_set():
            return
        clock = AsOfClock() if self.config.mode == "backtest" else None
        platform = Platform(self.config, Ports(clock=clock), drain_s=self.drain_s)
        self._opening = platform
        try:
            async with platform:
                self._platform, self.problem = platform, ""
                if not self._stopping.is_set():
                    self.state = "serving"
                    on_serving()
                while not self._stopping.is_set():
                    await self._wait(LOOKS_EVERY_S)
                    await self.health()
        finally:
            self._opening = self._platform = None

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _note(self, state: RetryCallState) -> None:
        self.state = "starting" if not self._stopping.is_set() else self.state
        problem = str(state.outcome.exception()) if state.outcome is not None else ""
        if problem != self.problem:
            self.problem = problem
            log.warning("worker_waits", reason=problem)

    async def health(self) -> Mapping[str, Any]:
        """Return the state, and by its name everything that keeps the worker from serving now."""
        problems = {"start": self.problem} if self.problem else {}
        if self.state == "starting" and not problems:
            waits_for = self._opening.waits_for if self._opening is not None else ""
            problems["start"] = f"waits for {waits_for or 'its servers'}"
        if self._platform is not None:
            try:
                async with asyncio.timeout(ASKED_WITHIN_S):
                    problems |= await self._platform.problems()
            except TimeoutError:
                problems["asking"] = f"no answer within {ASKED_WITHIN_S:g} s"
            self._report(problems)
        return {"state": self.state, "ready": self.state == "serving" and not problems, "problems": problems}

    def _report(self, problems: Mapping[str, str]) -> None:
        """Log what has come to be in the way, and that nothing is any more."""
        for part in problems.keys() - self._reported:
            log.warning("worker_not_ready", part=part, reason=problems[part])
        if self._reported and not problems:
            log.warning("worker_ready")
        self._reported = frozenset(problems)

    async def metrics(self) -> bytes:
        """Return the figures in the text format of Prometheus, health among them."""
        health, lag, folder = await self.health(), await self._outbox_lag(), self.config.folder
        free = None if folder is None else await asyncio.to_thread(_free_bytes, folder)
        counts = self._platform.statistics() if self._platform else None
        registry = CollectorRegistry()
        registry.register(_Figures(health, counts, lag, free))
        return generate_latest(registry)

    async def _outbox_lag(self) -> OutboxLag | None:
        """Return how far the stream is behind the log; None while there is no stream, or a log that says nothing."""
        outbox = self._platform.outbox if self._platform is not None else None
        try:
            async with asyncio.timeout(ASKED_WITHIN_S):
                return None if outbox is None else await outbox.lag()
        except (StoreError, TimeoutError):
            return None


def _free_bytes(folder: Path) -> int | None:
    """Return how much the disk of a log still takes; None while its folder is not there."""
    try:
        return disk_usage(folder).free
    except OSError:
        return None


@dataclass(frozen=True, slots=True, eq=False)  # a registry keeps it by identity
class _Figures:
    """The figures of a worker as Prometheus collects them."""

    health: Mapping[str, Any]
    statistics: PlatformStatistics | None
    lag: OutboxLag | None
    free_bytes: int | None

    def collect(self) -> Iterator[Metric]:
        is_serving, problems = self.health["state"] == "serving", self.health["problems"]
        yield GaugeMetricFamily("agentic_worker_serving", "1 while envelopes are taken.", is_serving)
        yield GaugeMetricFamily(
            "agentic_worker_ready", "1 while they are, and all servers answer.", self.health["ready"]
        )
        problem = GaugeMetricFamily(
            "agentic_worker_problem",
            "1 for each part that cannot be used; /readyz says why.",
            labels=["part"],
        )
        for part in sorted({*PARTS, *problems}):
            problem.add_metric([part], part in problems)
        yield problem
        if self.free_bytes is not None:
            yield GaugeMetricFamily(
                "agentic_log_disk_free_bytes", "Room on the disk of the log.", self.free_bytes
            )
        if self.lag is not None:
            yield GaugeMetricFamily(
                "agentic_outbox_lines", "Lines of the log that are not on the stream.", self.lag.lines
            )
            yield GaugeMetricFamily(
                "agentic_outbox_oldest_seconds", "How long the oldest of them has waited.", self.lag.oldest_s
            )
            yield CounterMetricFamily(
                "agentic_outbox_left_out", "Lines that are in the log alone.", self.lag.left_out
            )
        if self.statistics is not None:
            yield from self._counted(self.statistics)

    def _counted(self, statistics: PlatformStatistics) -> Iterator[Metric]:
        if statistics.keys_unread_s is not None:
            yield GaugeMetricFamily(
                "agentic_signing_keys_unread_seconds",
                "Time since the folder of signing keys was last read.",
                statistics.keys_unread_s,
            )
        pool, bus, ledger = statistics.pool, statistics.bus, statistics.ledger
        ends = {
            "finished": pool.finished,
            "dead_letter": pool.dead_letters,
            "given_back": pool.given_back,
            "event": pool.events,
        }
        yield _counters("agentic_deliveries", "Deliveries, by how they ended.", "end", ends)
        yield _counters("agentic_published", "Messages published, by topic.", "topic", bus.published)
        for name, text in (
            ("waiting", "Messages that wait here"),
            ("in_flight", "Messages handed out and not done"),
        ):
            gauge = GaugeMetricFamily(
                f"agentic_bus_{name}", f"{text}, by group and topic.", labels=["group", "topic"]
            )
            for lag in bus.backlogs:
                gauge.add_metric([lag.group, lag.topic], getattr(lag, name))
            yield gauge
        steps = {
            name: getattr(ledger, name)
            for name in ("reserved", "settled", "released", "in_doubt", "late", "refused")
        }
        yield _counters("agentic_ledger_steps", "Steps of the ledger, by kind.", "step", steps)
        yield _counters(
            "agentic_ledger_nusd",
            "Nano-dollars of charged calls.",
            "kind",
            {"reserved": ledger.reserved_nusd, "charged": ledger.charged_nusd},
        )
        calls = GaugeMetricFamily("agentic_calls", "Calls of now.", labels=["state"])
        calls.add_metric(["in_flight"], ledger.in_flight)
        calls.add_metric(["waiting_for_budget"], ledger.waiting)
        yield calls


def _counters(name: str, text: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family


FLAGS: Final = {
    "bus": "--bus",
    "checks": "--package",
    "concurrency": "--concurrency",
    "folder": "--store",
    "ledger": "--ledger",
    "mode": "--mode",
    "name": "--name",
    "providers": "--provider",
    "rules": "--package",
    "workflows": "--workflows",
}
"""The options that say what the configuration says too."""


def worker_config(
    path: Path | None,
    *,
    runs: Path,
    bus: str | None = None,
    ledger: str | None = None,
    providers: Sequence[str] = (),
    tenants: Sequence[str] = (),
    packages: Sequence[str] = (),
    **overrides: object,
) -> PlatformConfig:
    """Return the configuration of a worker, as `load_config` does; its log goes below `runs` if it says nothing else.

    `providers` are served in addition to those of the file, and only these `tenants` of the file. All checks and rules of
    `packages` are added to those of the file. Raises `ConfigError`, and
    `OptionError` for a worker without a bus or a provider, and for one of some tenants on a bus that all tenants share.
    """
    addresses = {"bus": bus, "ledger": ledger}
    overrides |= {place: {"url": url} for place, url in addresses.items() if url is not None}
    if providers:
        overrides["providers"] = {name: {} for name in providers}
    overrides |= adapters.functions_in(packages)
    config = load_config(path, flags=FLAGS, **overrides)
    if config.bus.url is None:
        raise OptionError(
            "--bus", "left out", "kafka://HOST:PORT, redis://HOST:PORT, or url in [bus] of the configuration"
        )
    if config.ledger.url is None:
        allowed = (
            "redis://HOST:PORT, which all workers of the bus share, or url in [ledger] of the configuration"
        )
        raise OptionError("--ledger", "left out", allowed)
    if not config.providers:
        raise OptionError(
            "--provider", "left out", "a provider to serve, or [providers.NAME] of the configuration"
        )
    if config.mode == "backtest" and not config.bus.namespace:
        raise OptionError("--mode", "backtest, and the bus has no namespace", BACKTEST_APART)
    if tenants and not config.bus.namespace:
        allowed = "a bus.namespace for them: workers of one bus serve the same tenants"
        raise OptionError("--tenant", f"{', '.join(tenants)}, and the bus has no namespace", allowed)
    folder = config.folder if config.folder is not None else runs / "workers"
    changes: dict[str, object] = {
        "name": config.name or f"worker@{gethostname()}"[:MOST_NAME],
        "folder": folder,
    }
    if tenants:
        changes["tenants"] = {name: config.tenants.get(name, TenantConfig()) for name in tenants}
    return config.model_copy(update=changes)
