"""The adapter of each port by configuration, and the stack that opens and closes them."""

import asyncio
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from datetime import UTC, timedelta, tzinfo
from pathlib import Path
from socket import gethostname
from ssl import SSLError, create_default_context
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import quote, urlsplit

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.topic import Broker, ConsumerLag, summed, topics_with
from agentic_trading.cancellation import run_shielded
from agentic_trading.clock import SystemClock
from agentic_trading.errors import TradingError
from agentic_trading.files import MOST_SECRET_BYTES, read_file, read_utf8
from agentic_trading.governance.control_stores.file import FileControlStore, MemoryControlStore
from agentic_trading.governance.controls_document import ControlStore
from agentic_trading.governance.ledger import Ledger
from agentic_trading.governance.ledgers.degraded import DegradedModeLedger
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limiter import Limiter
from agentic_trading.governance.limiters.deployment import MemoryLimiter
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.policy import Policy
from agentic_trading.governance.status_feed import FileStatusFeed, MemoryStatusFeed, StatusFeed
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import Providers
from agentic_trading.llm.providers.offline import RecordedAnswers
from agentic_trading.llm.result import LLMResult
from agentic_trading.llm.sealed_command import SealedCommand
from agentic_trading.llm.store import LOG_NAME, InteractionStore, Records
from agentic_trading.llm.stores.jsonl.checkpoints import Checkpoint, read_checkpoints
from agentic_trading.llm.stores.jsonl.reader import START, LogPosition, LogReader
from agentic_trading.llm.stores.jsonl.segments import LogFiles, read_seals
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore, JsonlRecords
from agentic_trading.llm.stores.jsonl.writer import Durability
from agentic_trading.llm.stores.memory import DiscardingInteractionStore, MemoryInteractionStore
from agentic_trading.logger import get_logger
from agentic_trading.platform.config import PlatformConfig, RunMode
from agentic_trading.platform.errors import ConfigError, ConfigProblem
from agentic_trading.worker.claim import ClaimStore
from agentic_trading.worker.claims.memory import MemoryClaimStore
from agentic_trading.worker.runner import RecordedAnswerSource

log = get_logger()

T = TypeVar("T")


class Closable(Protocol):
    """A port that can be closed."""

    async def aclose(self) -> None:
        """Close it. Calling it twice is harmless."""
        ...


ClosablePort = TypeVar("ClosablePort", bound=Closable)


class PortStack:
    """Open ports and contexts. Leaving the block closes them in reverse order.

    If closing one fails, the others are still closed. A cancellation does not interrupt closing. If several
    errors occur, one is raised: a cancellation or Ctrl-C, otherwise the first `TradingError`, because a user
    can act on it, otherwise the first error. The others are logged, and added to it as notes. An error of the
    block counts as the first. If it is a group, it is not taken apart.
    """

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._unclosed: list[BaseException] = []
        self._cancellations = 0

    async def __aenter__(self) -> Self:
        """Start with an empty stack."""
        self._cancellations = _cancellations()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything. Raise the most useful error, unless it is `e`."""
        try:
            await self._stack.__aexit__(kind, e, trace)
        except BaseException as raised:  # noqa: BLE001 - it is raised again, or one of those in it
            errors = [*_leaves(raised, without=e), *self._unclosed]
        else:
            errors = [*self._unclosed]
        errors = errors if e is None else [e, *errors]
        if errors and (useful := self._useful(errors)) is not e:
            raise useful

    def keep(self, port: ClosablePort) -> ClosablePort:
        """Return `port`, and close it with the stack."""
        self._stack.push_async_callback(self._close, port)
        return port

    async def make(self, make: Callable[[], ClosablePort]) -> ClosablePort:
        """Create a port in a thread. It is closed with the stack, even if the caller is cancelled."""

        async def made() -> ClosablePort:
            return self.keep(await asyncio.to_thread(make))

        return await run_shielded(made(), longest_s=math.inf)  # because a thread cannot be cancelled

    async def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enter a context, and leave it with the stack."""
        return await self._stack.enter_async_context(context)

    async def _close(self, port: Closable) -> None:
        async def close() -> None:
            await port.aclose()

        try:
            await run_shielded(close())
        except Exception as e:  # noqa: BLE001 - because code of other packages runs here
            e.add_note(f"while {type(port).__name__} was closed")
            self._unclosed.append(e)

    def _useful(self, errors: Sequence[BaseException]) -> BaseException:
        """Return the error to raise, with the others as its notes."""
        each = list({id(error): error for error in errors}.values())
        if _cancellations() <= self._cancellations:  # because a failed task of ours has cancelled the block
            each = [one for one in each if not isinstance(one, asyncio.CancelledError)] or each
        demanded = [one for one in each if not isinstance(one, Exception)]
        useful = next(iter([*demanded, *(one for one in each if isinstance(one, TradingError)), *each]))
        for other in each:
            if other is not useful and not isinstance(other, asyncio.CancelledError):
                text = f"{type(other).__name__}: {other}"
                log.error("platform_close_failed", error=text)
                useful.add_note(f"another error: {text}")
        return useful


def first_useful(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first `TradingError` of a group, otherwise its first error."""
    errors = list(_leaves(group, without=None))
    return next((error for error in errors if isinstance(error, TradingError)), errors[0])


def _leaves(error: BaseException, *, without: BaseException | None) -> Generator[BaseException]:
    """Yield the errors of a group and its subgroups, except the error of the block."""
    if error is without:
        return
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each, without=without)
    else:
        yield error


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


class _Recordings:
    """Recorded answers by provider name."""

    def __init__(self, by_name: Mapping[str, RecordedAnswers]) -> None:
        self._by_name = by_name

    async def find(self, envelope: LLMEnvelope, attempt: int) -> LLMResult | None:
        """Return the recorded result of this attempt, or None."""
        recording = self._by_name.get(str(envelope.provider))
        return None if recording is None else await recording.find(envelope, attempt)


def recordings_in(providers: Providers) -> RecordedAnswerSource | None:
    """Return the recorded answers among `providers`, which are served free of charge, or None."""
    if providers.names is None:
        every = providers.of("")
        return every if isinstance(every, RecordedAnswers) else None
    found = {name: providers.of(name) for name in providers.names}
    recordings = {name: one for name, one in found.items() if isinstance(one, RecordedAnswers)}
    return _Recordings(recordings) if recordings else None


def ledger_of(url: str, *, zone: tzinfo = UTC) -> Ledger:
    """Return the shared ledger at `url`."""
    from agentic_trading.governance.ledgers.redis import MOST_RECENT_S, RedisLedger

    return RedisLedger(url, zone=zone, recorded_within_s=MOST_RECENT_S)


def worker_ledger_of(url: str, *, zone: tzinfo = UTC) -> Ledger:
    """Return the shared ledger for a worker. Calls in flight survive its outages."""
    return DegradedModeLedger(ledger_of(url, zone=zone), clock=SystemClock())


def boards_of(url: str | None, folder: Path | None) -> tuple[ControlStore, StatusFeed]:
    """Return controls and statuses on the server at `url`, or in `folder`, or in this process."""
    if url is None and folder is None:
        return MemoryControlStore(), MemoryStatusFeed()
    if url is None:
        return FileControlStore(folder or Path()), FileStatusFeed(folder or Path())
    from agentic_trading.governance.control_stores.redis import RedisControlStore, RedisStatusFeed

    return RedisControlStore(url), RedisStatusFeed(url)


def limiter_of(url: str | None, policy: Policy | None) -> Limiter:
    """Return the limiter of a policy. Each model has a circuit breaker and a retry budget."""
    rates = policy.rates if policy is not None else {}
    if url is None:
        return MemoryLimiter(rates, clock=SystemClock())
    from agentic_trading.governance.limiters.redis import RedisLimiter

    return RedisLimiter(url, rates)


def broker_of(config: PlatformConfig, *, buffer: int = 256) -> Broker:
    """Return the bus of a configuration. Does not connect. Blocks, because it reads files.

    Args:
        config: The configuration. Without `bus.url`, the bus is in this process.
        buffer: The number of messages that a reader fetches ahead per topic.

    Raises:
        ConfigError: If a file of the bus is invalid.

    """
    bus = config.bus
    if bus.url is None:
        # Acknowledged messages are dropped, because memory would grow for as long as the process runs.
        return MemoryBroker(max_message_bytes=bus.max_message_bytes, retain_acknowledged=False)
    settings = replace(bus_settings_of(config), buffer=buffer)
    if bus.is_on_kafka:
        from agentic_trading.bus.brokers.kafka.broker import KafkaBroker

        return KafkaBroker(settings)
    from agentic_trading.bus.brokers.redis.broker import RedisBroker

    return RedisBroker(settings)


def bus_settings_of(config: PlatformConfig) -> Any:
    """Return the `KafkaSettings` or `RedisBusSettings` of a configuration.

    Blocks and raises as `broker_of` does.
    """
    if problems := list(_file_problems(config)):
        raise ConfigError(problems)
    try:
        return _kafka_settings(config) if config.bus.is_on_kafka else _redis_settings(config)
    except SSLError as e:
        place, found = (
            "bus.certificate_file",
            f"{config.bus.certificate_file}, which cannot be used ({e.reason or e})",
        )
        allowed = "a certificate in PEM format, with its key in the same file or in bus.key_file"
        raise ConfigError([ConfigProblem(config.origin_of(place), place, found, allowed)]) from e
    except (OSError, ValueError) as e:
        allowed = "readable files"
        raise ConfigError([
            ConfigProblem(config.origin_of("bus.url"), "bus", f"not usable ({e})", allowed)
        ]) from e


def _file_problems(config: PlatformConfig) -> Iterator[ConfigProblem]:
    """Yield unreadable files of the bus, and files without certificates of authorities."""
    for name in ("ca_file", "certificate_file", "key_file", "password_file"):
        file, place = getattr(config.bus, name), f"bus.{name}"
        if file is None:
            continue
        try:
            read_file(file)
            if name == "ca_file":
                create_default_context(cafile=file)
        except SSLError as e:
            found, allowed = (
                f"{file}, which cannot be used ({e.reason or e})",
                "certificates of authorities in PEM format",
            )
        except OSError as e:
            found, allowed = f"{file}, which cannot be read ({e.strerror})", "a readable file"
        else:
            continue
        yield ConfigProblem(config.origin_of(place), place, found, allowed)


def _kafka_settings(config: PlatformConfig) -> Any:
    from agentic_trading.bus.brokers.kafka.connection import KafkaSecurity, settings_of

    bus, security = config.bus, None
    if bus.is_encrypted:
        password = _bus_password(config)
        security = KafkaSecurity(bus.ca_file, bus.certificate_file, bus.key_file, bus.username, password)
    return settings_of(
        bus.url or "",
        namespace=bus.namespace,
        member=config.name,
        max_message_bytes=bus.max_message_bytes,
        security=security,
    )


def _redis_settings(config: PlatformConfig) -> Any:
    from agentic_trading.bus.brokers.redis.redis import redis_settings_of

    bus = config.bus
    parts = urlsplit(bus.url or "")
    if bus.username:
        login = f"{quote(bus.username, safe='')}:{quote(_bus_password(config), safe='')}"
        parts = parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}")
    named = {"namespace": bus.namespace} if bus.namespace else {}
    return redis_settings_of(
        parts.geturl(), ca_file=bus.ca_file, max_message_bytes=bus.max_message_bytes, **named
    )


def _bus_password(config: PlatformConfig) -> str:
    file = config.bus.password_file
    password = "" if file is None else read_utf8(file, most_bytes=MOST_SECRET_BYTES).strip()
    config.redaction.add(password)
    return password


async def consumer_lags(config: PlatformConfig) -> Sequence[ConsumerLag]:
    """Return the lag of all groups on the bus of a configuration, by topic.

    An empty group stands for a topic that no group has read.

    Raises:
        ConfigError: If a file of the bus is invalid.
        BusUnavailableError: If the bus is unreachable.

    """
    topics = topics_with(sorted({row.lane for row in config.providers.values()} - {""}))
    settings = await asyncio.to_thread(bus_settings_of, config)
    if not config.bus.is_on_kafka:
        from agentic_trading.bus.brokers.redis.redis import RedisTopics

        found: Sequence[ConsumerLag] = await RedisTopics(settings).lag(topics)
        return found
    from agentic_trading.bus.brokers.kafka.admin import group_lags

    each = await group_lags(settings, [topic.name for topic in topics])
    return summed(ConsumerLag(one.group, one.topic, one.lag, 0) for one in each)


def claims_of(config: PlatformConfig, log_id: str = "") -> ClaimStore:
    """Return the claims of a worker whose log is `log_id`. Blocks, because it reads a file.

    With a shared bus they are on the ledger's server, otherwise in this process.
    """
    url = config.ledger.url
    if config.bus.url is None or url is None:
        return MemoryClaimStore()
    from agentic_trading.worker.claims.redis import RedisClaimStore

    # The namespace is part of the name, so that two buses can have workers with the same name.
    bus = f"{config.bus.namespace}/" if config.bus.namespace else ""
    name = config.name and f"{bus}{config.name}"
    return RedisClaimStore(url, name=name, log_id=log_id, host=gethostname())


def memory_ledger(*, zone: tzinfo = UTC) -> Ledger:
    """Return a ledger in this process without limits."""
    return MemoryLedger(zone=zone)


def memory_log() -> InteractionStore:
    """Return a log in memory."""
    return MemoryInteractionStore()


async def opened_log(folder: Path, config: PlatformConfig) -> JsonFileInteractionStore:
    """Open the log in a folder, locked for this process.

    Raises:
        StoreLockedError: If another process has the log open.
        StoreError: If the log is damaged or cannot be written.

    """
    # On a shared bus, a reply promises that the records are on disk, which `relaxed` would break.
    is_repeatable = config.mode == "backtest" and config.bus.url is None
    durability = config.durability or ("relaxed" if is_repeatable else "group")
    store = _log_at(folder / LOG_NAME, Durability(durability), config)
    try:
        await store.open()
    except BaseException:
        await run_shielded(store.aclose())
        raise
    return store


def file_log_of(store: InteractionStore) -> JsonFileInteractionStore | None:
    """Return the log if it is in a file, otherwise None."""
    return store if isinstance(store, JsonFileInteractionStore) else None


def records_in(store: InteractionStore) -> Records:
    """Return the queries of a log in a file or in memory. Raises `TypeError` for another one."""
    if isinstance(store, JsonFileInteractionStore | MemoryInteractionStore):
        return store.records
    raise TypeError(f"{type(store).__name__} has no queries. Allowed: a log in a file or in memory")


def tenant_limit(budget_nusd: int, max_calls: int | None = None) -> Limit:
    """Return the limit of `--budget-usd` and `--max-calls`: on the total of each tenant."""
    return Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=budget_nusd, calls=max_calls)


def budget_ledger(budget_nusd: int, *, max_calls: int | None = None, zone: tzinfo = UTC) -> MemoryLedger:
    """Return a ledger that limits each tenant to `budget_nusd` and `max_calls` in total."""
    return MemoryLedger([tenant_limit(budget_nusd, max_calls)], zone=zone)


def totals_ledger() -> MemoryLedger:
    """Return a ledger without limits that keeps the totals of every scope."""
    return MemoryLedger(keep=timedelta(days=36_500), counted=[(scope, Window.NONE) for scope in ScopeKind])


Recording = RecordedAnswers


Log = JsonFileInteractionStore


LogPlace = LogPosition


LogRecords = JsonlRecords


LogCheckpoint = Checkpoint


LOG_START = START


def recording(interactions: Iterable[LLMInteraction] = ()) -> Recording:
    """Return a source of recorded answers. More can be added later."""
    return RecordedAnswers(interactions)


def unread_log() -> DiscardingInteractionStore:
    """Return a log that keeps no records, for sessions whose records are never read."""
    return DiscardingInteractionStore()


def log_for(
    mode: RunMode, path: Path, *, can_be_repeated: bool = True, config: PlatformConfig | None = None
) -> Log:
    """Return the log of a session.

    Without a configured durability, a backtest that can be repeated is `relaxed`, and any other session is
    `group`.
    """
    config = config or PlatformConfig()
    default = Durability.RELAXED if mode == "backtest" and can_be_repeated else Durability.GROUP
    durability = default if config.durability is None else Durability(config.durability)
    return _log_at(path, durability, config)


def _log_at(path: Path, durability: Durability, config: PlatformConfig) -> Log:
    settings = config.log
    command = settings.sealed_command
    return Log(
        path,
        durability=durability,
        segment_bytes=settings.segment_bytes,
        compress=settings.compress,
        checkpoint_file=settings.checkpoint_file,
        sealed_command=None if command is None else SealedCommand.parse(command, config.redaction),
    )


def records_of(path: Path) -> JsonlRecords:
    """Return the records of the log at `path`. Does not write to it."""
    return JsonlRecords(path)


def log_position(path: Path, line: int) -> LogPosition:
    """Return the start of the segment with the line after `line`, of the log at `path`. Reads its seals only.

    Blocks. Raises `StoreError` if the seals cannot be read.
    """
    return LogReader(path).segment_start(line)


def checkpoints_in(path: Path) -> list[Checkpoint]:
    """Return the checkpoints in a file, in order. Raises `StoreError` if it cannot be read."""
    return read_checkpoints(path)


def seal_hashes(path: Path) -> list[str]:
    """Return the hashes of the seals of the log at `path`, in order. Raises `StoreError` if they cannot be read."""
    return [seal.hash for seal in read_seals(LogFiles(path).seals).each]
