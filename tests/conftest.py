"""What every test gets: a guard on the loop, a clock that stands still, ids that repeat."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import structlog
from blockbuster import BlockBuster, BlockBusterFunction
from hypothesis import settings

from agentic_trading.clock import SimClock
from agentic_trading.ids import NewId, seeded_ids
from agentic_trading.services.local import KafkaService
from tests import kafka_server, redis_server

# How fast a machine is says nothing about the code: an example has no deadline, a test has its time limit.
# `make soak` draws the most examples.
settings.register_profile("default", max_examples=15, deadline=None)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("soak", max_examples=300, deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Nothing is printed. `structlog.testing.capture_logs` sees all of it. The default renderer draws the local
# variables of each frame: a second of CPU an error, whose text is dropped.
structlog.configure(
    processors=[structlog.contextvars.merge_contextvars, structlog.processors.format_exc_info],
    logger_factory=structlog.ReturnLoggerFactory(),
)

WAITS_FOR_THE_DISK = ("os.fsync", "os.fdatasync", "os.pwrite", "os.truncate", "os.ftruncate")
"""What blockbuster does not watch by itself; a commit to disk belongs into a thread."""


@dataclass
class SharedKafka:
    """The Kafka of a run on several processes; `address` is None where none can be."""

    running: ExitStack = field(default_factory=ExitStack)
    address: str | None = None


SHARED_KAFKA = pytest.StashKey[SharedKafka]()


ON_EVERY_SERVER = ("bus", "contracts", "governance", "worker")
"""Packages whose tests run on every kind of Redis server; of whole programs it is enough to see them on one."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what would run once more on another kind of server."""
    others = redis_server.servers()[1:]
    packages = {Path(__file__).parent / name for name in ON_EVERY_SERVER}
    left_out = [
        item
        for item in items
        if any(
            isinstance(value, str) and value in others
            for value in getattr(getattr(item, "callspec", None), "params", {}).values()
        )
        and not packages.intersection(item.path.parents)
    ]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Take two processes more than there are cores: many tests wait for a server or a program."""
    return (os.cpu_count() or 1) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Start the Kafka that all processes of a run share; where none can be, each test that asks for one says why."""
    stash = node.config.stash
    if SHARED_KAFKA not in stash:
        stash[SHARED_KAFKA] = shared = SharedKafka()
        with suppress(pytest.skip.Exception, pytest.fail.Exception):
            folder = shared.running.enter_context(TemporaryDirectory())
            server = shared.running.enter_context(kafka_server.own_server(Path(folder)))
            shared.address = server.bootstrap_servers
    node.workerinput["kafka"] = stash[SHARED_KAFKA].address


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the shared Kafka."""
    if SHARED_KAFKA in config.stash:
        config.stash[SHARED_KAFKA].running.close()


def pytest_sessionstart() -> None:
    """Collect the tests without garbage collection: it takes a third of that time and frees nothing."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep the collected tests out of garbage collection: they live to the end of the session."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _no_blocking_on_the_loop() -> Iterator[None]:
    """Fail a test in which our code blocks the running loop."""
    guard = BlockBuster("agentic_trading")
    # Coverage takes a lock for each line it sees: under this hook a slow test could be stopped with the lock held.
    for name in ("threading.Lock.acquire", "threading.Lock.acquire_lock"):
        guard.functions.pop(name, None)
    for name in WAITS_FOR_THE_DISK:
        guard.functions[name] = BlockBusterFunction(None, name, scanned_modules="agentic_trading")
    # One row by its primary key takes microseconds, and a thread would cost every call more.
    guard.functions["sqlite3.Connection.execute"].can_block_in(
        "agentic_trading/llm/stores/jsonl/ids.py", "find"
    )
    guard.activate()
    yield
    guard.deactivate()


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> Iterator[None]:
    """Let the tests, and the programs they start, hear Ctrl-C: what a shell runs in its background begins deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def clock() -> SimClock:
    """Return a clock that stands at the start of 2 January 2026 until it is moved."""
    return SimClock(datetime(2026, 1, 2, tzinfo=UTC))


@pytest.fixture
def ids() -> NewId:
    """Return a source of ids that is the same in every run."""
    return seeded_ids("tests")


@pytest.fixture(scope="session")
def redis_named() -> Iterator[Callable[[str], str]]:
    """Give the address of a real server by its name (one of `redis_server.servers()`), started when it is asked for."""
    with ExitStack() as running:
        yield cache(lambda name: running.enter_context(redis_server.running(name)))


@pytest.fixture(scope="session", params=redis_server.servers())
def redis_url(request: pytest.FixtureRequest, redis_named: Callable[[str], str]) -> str:
    """Return the address of a real server that all tests share; use keys of `redis_server.namespace()`."""
    return redis_named(request.param)


@pytest.fixture(params=[name for name in redis_server.servers() if name != "given"] or ["valkey"])
def own_redis(request: pytest.FixtureRequest) -> Iterator[redis_server.RealServer]:
    """Give a real server of the test's own, to be killed, restarted and set back."""
    with redis_server.own_server(request.param) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_servers(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the address of a real Kafka that all tests share; use topics of the test's own."""
    given = kafka_server.GIVEN or getattr(pytestconfig, "workerinput", {}).get("kafka")
    if given:
        yield given
        return
    with kafka_server.own_server(tmp_path_factory.mktemp("kafka")) as server:
        yield server.bootstrap_servers


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaService]:
    """Give a real Kafka of the test's own, to be killed, stopped and started again."""
    with kafka_server.own_server(tmp_path / "kafka") as server:
        yield server
