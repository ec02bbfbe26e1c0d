"""A worker that is killed with a delivery at each of its steps, over each bus: what is left, who recovers it, what is billed twice."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.bus.brokers.kafka.admin import group_lags
from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.brokers.redis.redis import RedisTopics
from agentic_trading.bus.codec import envelope_message, read_interaction, reply_head
from agentic_trading.bus.errors import BusUnavailableError
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES, EVENTS, REPLIES, Broker, Topic
from agentic_trading.governance.ledger import LedgerEntry, ReservationState
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.llm import LLMInteraction
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.worker.active_claim import key_of
from agentic_trading.worker.claim import Finished
from tests import kafka_server, redis_bus, redis_server
from tests.flows.crash_rows import ROWS, Ports, Row, Servers, Standing
from tests.gateway import held
from tests.worker.test_crashes import Process, SharedClaims, charged

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)
ROOT = Path(__file__).parents[2]
DESK = "desk-1"
WITHIN_S = 30.0
TOPICS: list[Topic[Any]] = [*ENVELOPES.values(), EVENTS, REPLIES, DEAD_LETTERS]


@dataclass
class Left:
    """Whether a row came to its step, and what there is of it in the end: on the invoice, on record, among the replies, in the ledger, by the log, of its claim."""

    was_reached: bool
    billed: list[int]
    records: list[Any]
    replies: list[LLMInteraction]
    entries: Sequence[LedgerEntry]
    held: Mapping[str, int]
    on_the_books: int
    claim: Any

    @property
    def unsent(self) -> int:
        """How many attempts are on record as not sent."""
        return sum(getattr(each, "kind", "") == "attempt.unsent" for each in self.records)

    @property
    def attempts(self) -> list[LLMInteraction]:
        """The attempts on record, each id once, in their order; one that was made again has another time."""
        found = {each.interaction_id: each for each in self.records if isinstance(each, LLMInteraction)}
        return sorted(found.values(), key=lambda each: each.result.attempt_number)

    def charged(self, state: ReservationState) -> int:
        return sum(entry.charged.nusd for entry in self.entries if entry.state is state)


@dataclass
class Crash:
    """What was not done when the first worker was dead, and when the second one was done; and what each row has in the end."""

    behind: int
    behind_at_end: int
    dead_letters: int
    left: Mapping[str, Left] = field(repr=False)


class InMemory(AsyncExitStack):
    """Two workers in this process, one after the other, that share all but the log of each."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self._bus, self._ledger, self._claims = MemoryBroker(), MemoryLedger(), SharedClaims()
        self._logs: dict[str, MemoryInteractionStore] = {}

    def broker(self) -> Broker:
        return self._bus

    async def make_topics(self) -> None:
        """Do nothing: a topic is there when it is used."""

    async def ports(self, name: str, process: Process) -> Ports:
        log = self._logs.setdefault(name, MemoryInteractionStore())
        return Ports(self._bus, self._ledger, self._claims, log)

    def logs(self) -> list[Any]:
        return list(self._logs.values())

    @asynccontextmanager
    async def standing(self, name: str, say: Callable[[str], None]) -> AsyncGenerator[None]:
        """Run a worker that is dead when the block ends."""
        process = Standing(ROWS, say)
        ports = await self.ports(name, process)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(ports.pool(process, self.folder / "invoice").run())
            try:
                yield
            finally:
                process.is_dead = True
                running.cancel()
        for subscription in process.subscriptions:
            await subscription.aclose()
        self._claims.end_owner()

    async def behind(self) -> int:
        """Return how many messages are not done."""
        await asyncio.sleep(0)
        return sum(each.waiting + each.in_flight for each in self._bus.statistics().backlogs)


class OnServers(Servers):
    """Two workers on real servers, the first in a process of its own."""

    async def make_topics(self) -> None:
        if self.kafka:
            await kafka_server.make_topics(self.kafka, TOPICS, namespace=self.namespace)
        else:
            await redis_bus.make_topics(self.bus, self.namespace, TOPICS)

    def logs(self) -> list[Any]:
        logs = [JsonlRecords(path) for path in self.folder.glob("*/interactions.jsonl")]
        for log in logs:
            self.push_async_callback(log.aclose)
        return logs

    @asynccontextmanager
    async def standing(self, name: str, say: Callable[[str], None]) -> AsyncGenerator[None]:
        """Run a worker that is killed when the block ends."""
        words = (self.bus, self.redis, self.namespace, str(self.folder), name)
        command = (sys.executable, "-m", "tests.flows.crash_rows", *words)
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE)
        assert process.stdout is not None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_lines(process.stdout, say))
                try:
                    yield
                finally:
                    with suppress(ProcessLookupError):  # it has ended by itself: its rows say so
                        process.kill()
        finally:
            await process.wait()

    async def behind(self) -> int:
        """Return how many messages are not done, by what the servers know."""
        topics = list(ENVELOPES.values())
        if self.kafka:
            settings = kafka_server.settings(self.kafka, namespace=self.namespace)
            return sum(each.lag for each in await group_lags(settings, [topic.name for topic in topics]))
        lags = await RedisTopics(redis_bus.settings(self.bus, self.namespace)).lag(topics)
        return sum(each.waiting + each.in_flight for each in lags)


async def _lines(stream: asyncio.StreamReader, say: Callable[[str], None]) -> None:
    async for line in stream:
        say(line.decode().strip())


async def crashed(fleet: InMemory | OnServers, rows: Sequence[Row], *, restarts: bool) -> Crash:
    """Kill a worker that has each row at its step, and let another one, or the same one again, serve what is left."""
    broker = fleet.broker()
    await fleet.make_topics()
    replies = await broker.replies(DESK)
    said, missing = asyncio.Queue[str](), {row.tenant for row in rows}
    async with fleet.standing("w1", said.put_nowait):
        for row in rows:
            topic = ENVELOPES[row.envelope.workflow]
            await broker.publish(topic, envelope_message(row.envelope, reply_to=DESK))
        with suppress(TimeoutError):  # the tests of those rows say so
            async with asyncio.timeout(WITHIN_S):
                while missing:
                    missing.discard(await said.get())
    behind = await fleet.behind()

    process = Process()
    ports = await fleet.ports("w1" if restarts else "w2", process)
    pool = ports.pool(process, fleet.folder / "invoice")
    async with asyncio.TaskGroup() as group:
        group.create_task(pool.run())
        with suppress(TimeoutError):
            async with asyncio.timeout(WITHIN_S):
                while not await _is_done(fleet):  # noqa: ASYNC110 - the lag is asked for
                    await asyncio.sleep(0.05)
        pool.stop()

    await broker.publish(REPLIES, Message(DESK, b"", {"last": "true"}))
    told: list[LLMInteraction] = []
    async with asyncio.timeout(10):
        while "last" not in (message := (await replies.take()).message).headers:
            if reply_head(message).is_final:
                told.append(read_interaction(message))
    records = [entry.record for log in fleet.logs() async for entry in log.scan()]
    letters = [delivery async for delivery in broker.scan(DEAD_LETTERS)]
    invoice = [line.split() for line in (fleet.folder / "invoice").read_text("utf-8").splitlines()]
    left = {
        row.tenant: Left(
            row.tenant not in missing,
            [int(attempt) for tenant, attempt in invoice if tenant == row.tenant],
            [each for each in records if _tenant(each) == row.tenant],
            [each for each in told if _tenant(each) == row.tenant],
            await ports.ledger.entries(row.tenant),
            held(await ports.ledger.balances(row.tenant)),
            charged(records, row.tenant),
            await ports.claims.claim(key_of(row.envelope), row.envelope.envelope_hash),
        )
        for row in rows
    }
    return Crash(behind, await fleet.behind(), len(letters), left)


async def _is_done(fleet: InMemory | OnServers) -> bool:
    try:
        return not await fleet.behind()
    except BusUnavailableError:  # not within its time limit, on a busy machine: it is asked again
        return False


def _tenant(record: Any) -> str:
    tenant: str = record.envelope.tenant_id if isinstance(record, LLMInteraction) else record.tenant_id
    return tenant


def rows_over(bus: str) -> list[Row]:
    """Return the rows of a bus: within a process no claim's answer is lost."""
    return [row for row in ROWS if bus != "memory" or (row.step, row.is_lost) != ("claims.claim", True)]


@pytest.fixture(scope="session")
def crashes() -> dict[tuple[str, bool], Crash]:
    """Return the crashes that were made already: each is made once for all its rows."""
    return {}


@pytest.fixture
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> InMemory | OnServers:
    """Return workers over the bus that a test asks for."""
    bus, _ = request.param
    if bus == "memory":
        return InMemory(tmp_path)
    redis = request.getfixturevalue("redis_named")(redis_server.servers()[0])
    address = f"kafka://{request.getfixturevalue('kafka_servers')}" if bus == "kafka" else redis
    return OnServers(address, redis, redis_server.namespace(), tmp_path)


@pytest.fixture
async def crash(
    request: pytest.FixtureRequest, crashes: dict[tuple[str, bool], Crash], fleet: InMemory | OnServers
) -> Crash:
    """Return what a crash left, all rows of a bus side by side."""
    bus, restarts = made = request.node.callspec.params["fleet"]
    if made not in crashes:
        async with fleet:
            crashes[made] = await crashed(fleet, rows_over(bus), restarts=restarts)
    return crashes[made]


KILLED = ("redis", "kafka")
"""Buses over which a worker process is killed on each row: `make soak` runs them."""
CRASHES = [(bus, restarts) for bus in ("memory", *KILLED) for restarts in (False, True)]


def _marks(crash: tuple[str, bool]) -> list[pytest.MarkDecorator]:
    return [pytest.mark.soak] if crash[0] in KILLED else []


def _id(crash: tuple[str, bool]) -> str:
    bus, restarts = crash
    return f"{bus}-{'restarted' if restarts else 'another'}"


@pytest.mark.parametrize(
    ("fleet", "row"),
    [
        pytest.param(made, row, id=f"{_id(made)}-{row.tenant}", marks=_marks(made))
        for made in CRASHES
        for row in rows_over(made[0])
    ],
    indirect=["fleet"],
)
async def test_crashed_delivery_ends_once_and_matches_bill(crash: Crash, row: Row) -> None:
    left, price = crash.left[row.tenant], crash.left[f"poll-{row.workflow}"].charged(ReservationState.SETTLED)

    assert left.was_reached
    assert left.billed == row.billed
    (end,) = [each for each in left.attempts if each.result.next_step in {"", "final"}]
    assert end is left.attempts[-1]
    assert {reply.interaction_id for reply in left.replies} == {end.interaction_id}
    assert isinstance(left.claim, Finished)
    kept = [LLMInteraction.from_wire(line) for line in left.claim.attempts.splitlines()]
    assert [each.interaction_id for each in kept] == [each.interaction_id for each in left.attempts]
    assert kept[-1].wire == end.wire
    assert end.result.attempt_number == (row.billed or [1])[-1]
    assert end.result.actionable is (bool(row.billed) and not row.ends_in_doubt)
    assert end.result.in_doubt is row.ends_in_doubt
    assert left.unsent == row.is_unsent

    answered = len(row.billed) - (row.is_in_doubt and row.has("provider.complete"))
    assert price > 0
    assert left.charged(ReservationState.SETTLED) == price * answered
    assert (left.charged(ReservationState.IN_DOUBT) > price) is row.is_in_doubt
    assert (left.held["calls"] > 0) is row.hold_is_lost
    assert left.on_the_books == sum(entry.charged.nusd for entry in left.entries)


@pytest.mark.parametrize(
    "fleet", [pytest.param(made, id=_id(made), marks=_marks(made)) for made in CRASHES], indirect=True
)
async def test_deliveries_are_acknowledged_only_when_done(crash: Crash) -> None:
    unfinished = [row for row in crash.left if not row.startswith("subscription.ack") and "-lost-" not in row]

    assert crash.behind >= len(unfinished)
    assert crash.behind_at_end == crash.dead_letters == 0
