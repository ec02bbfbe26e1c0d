"""A worker process: a platform on a shared bus, with health and metrics, until it is stopped."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import disk_usage
from socket import gethostname
from typing import Any, Final

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

from agentic_trading.bus.errors import BusUnavailableError, TopicSetupError
from agentic_trading.cancellation import on_first_signal
from agentic_trading.governance.errors import ControlsUnavailableError, LedgerUnavailableError
from agentic_trading.llm.errors import StoreError
from agentic_trading.logger import get_logger
from agentic_trading.platform import adapters
from agentic_trading.platform.config import BACKTEST_APART, PlatformConfig, TenantConfig
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.metrics import (
    attempt_samples,
    budget_samples,
    metrics_text,
    platform_samples,
    worker_samples,
)
from agentic_trading.platform.platform import Platform, Ports
from agentic_trading.platform.settings import load_config
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
"""Errors that a worker waits out at its start. A ledger that was rolled back is among them."""

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 15.0
ASKED_WITHIN_S: Final = 5.0
LOOKS_EVERY_S: Final = 10.0
"""Seconds between checks of all servers. Changes are logged."""

MOST_NAME: Final = 64


@dataclass(slots=True)
class WorkerProcess:
    """One worker process.

    Attributes:
        config: The configuration. It must set `bus.url`.
        drain_s: Seconds for calls in flight after `stop`.
        state: `starting`, `serving` or `stopping`.
        problem: The reason why it waits at its start. Empty if there is none.

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
        """Take no more envelopes, finish calls in flight, and return from `run`.

        Calling it twice is harmless.
        """
        self.state = "stopping"
        self._stopping.set()

    async def run(
        self, on_serving: Callable[[], None] = lambda: None, on_signal: Callable[[], None] = lambda: None
    ) -> None:
        """Serve until `stop`, SIGINT or SIGTERM. A second signal ends the process immediately.

        Unreachable servers and missing topics are retried without limit.

        Args:
            on_serving: Called when the worker starts to take envelopes.
            on_signal: Called on the first signal.

        Raises:
            ConfigError: If the configuration is invalid.
            StoreError: If the log cannot be used.

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
        """Return the state, whether the worker is ready, and the problems by part."""
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
        """Log new problems, and when all are gone."""
        for part in problems.keys() - self._reported:
            log.warning("worker_not_ready", part=part, reason=problems[part])
        if self._reported and not problems:
            log.warning("worker_ready")
        self._reported = frozenset(problems)

    async def metrics(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        health, lag, folder = await self.health(), await self._outbox_lag(), self.config.folder
        free = None if folder is None else await asyncio.to_thread(_free_bytes, folder)
        parts = [worker_samples(health, lag, free)]
        if (platform := self._platform) is not None:
            statistics = platform.statistics()
            parts += [platform_samples(statistics), attempt_samples(statistics.pool.attempts)]
            if statistics.pool.budgets is not None:
                reporting = await _reporting(platform)
                # In threads, because thousands of samples take longer than the loop may be blocked.
                parts.append(await asyncio.to_thread(budget_samples, statistics.pool.budgets, reporting))
        return await asyncio.to_thread(metrics_text, *parts)

    async def _outbox_lag(self) -> OutboxLag | None:
        """Return how far the stream is behind the log. None without a stream or a readable log."""
        outbox = self._platform.outbox if self._platform is not None else None
        try:
            async with asyncio.timeout(ASKED_WITHIN_S):
                return None if outbox is None else await outbox.lag()
        except (StoreError, TimeoutError):
            return None


async def _reporting(platform: Platform) -> Mapping[str, int]:
    """Return the number of reporting workers by tenant. Empty if the server does not answer in time."""
    try:
        async with asyncio.timeout(ASKED_WITHIN_S):
            return await platform.reporting()
    except TimeoutError:
        return {}


def _free_bytes(folder: Path) -> int | None:
    """Return the free bytes on the disk of a log. None if its folder does not exist."""
    try:
        return disk_usage(folder).free
    except OSError:
        return None


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
"""The command options that set values of the configuration."""


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
    """Return the configuration of a worker, loaded by `load_config`.

    Args:
        path: The configuration file.
        runs: The folder of the worker's log, unless the configuration has one.
        bus: The URL of the bus.
        ledger: The URL of the ledger.
        providers: Providers to serve, in addition to those of the file.
        tenants: The only tenants to serve. Empty means all tenants of the file.
        packages: Packages whose checks and rules are all loaded, in addition to those of the file.
        **overrides: Fields of `PlatformConfig`.

    Raises:
        OptionError: If bus, ledger or provider is missing, or a namespace that backtests or `tenants` need.
        ConfigError: If the configuration is invalid otherwise.

    """
    addresses = {"bus": bus, "ledger": ledger}
    overrides |= {place: {"url": url} for place, url in addresses.items() if url is not None}
    if providers:
        overrides["providers"] = {name: {} for name in providers}
    overrides |= adapters.functions_in(packages)
    config = load_config(path, flags=FLAGS, **overrides)
    if config.bus.url is None:
        raise OptionError(
            "--bus", "not set", "kafka://HOST:PORT, redis://HOST:PORT, or url in [bus] of the configuration"
        )
    if config.ledger.url is None:
        allowed = (
            "redis://HOST:PORT, shared by all workers of the bus, or url in [ledger] of the configuration"
        )
        raise OptionError("--ledger", "not set", allowed)
    if not config.providers:
        raise OptionError(
            "--provider", "not set", "the name of a provider, or [providers.NAME] in the configuration"
        )
    if config.mode == "backtest" and not config.bus.namespace:
        raise OptionError("--mode", "backtest, but the bus has no namespace", BACKTEST_APART)
    if tenants and not config.bus.namespace:
        allowed = "a bus.namespace for these tenants. All workers of a bus must serve the same tenants"
        raise OptionError("--tenant", f"{', '.join(tenants)}, but the bus has no namespace", allowed)
    folder = config.folder if config.folder is not None else runs / "workers"
    changes: dict[str, object] = {
        "name": config.name or f"worker@{gethostname()}"[:MOST_NAME],
        "folder": folder,
    }
    if tenants:
        changes["tenants"] = {name: config.tenants.get(name, TenantConfig()) for name in tenants}
    return config.model_copy(update=changes)
