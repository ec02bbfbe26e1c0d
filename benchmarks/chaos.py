"""What becomes of envelopes and money while worker processes are killed and frozen, and the bus and Redis go away.

Run: python benchmarks/chaos.py [--quick] [--bus redis] [--lose-folder | --set-back]. Four `agentic-trading worker` on a real Kafka (or a Redis as the bus) and
a real Redis, a provider that keeps an invoice of its own, and a client. Exits with 1 if a promise is broken: see the table that it prints.
"""

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agentic_trading.bus.codec import read_dead_letter
from agentic_trading.bus.errors import BusError
from agentic_trading.bus.topic import DEAD_LETTERS, RECORDS
from agentic_trading.client.gateway import StructuredGateway
from agentic_trading.governance.ledger import parts_of
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import DEFAULT_TENANT, LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import NoDecision
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.platform.clients import remote_gateway
from agentic_trading.platform.settings import load_config
from agentic_trading.services.local import KafkaService
from benchmarks.chaos_checks import Booked, Evidence, Logs, Sent, checks_of, print_checks
from benchmarks.chaos_fleet import FULL, QUICK, Fleet, Size
from benchmarks.chaos_place import PROGRAM, Bus, Place, placed
from benchmarks.chaos_provider import MODEL, read_invoice

A_TRACE = 20
"""How many envelopes a decision chain has: they keep their order in each workflow."""

ASKED = 10
"""Of so many chains, one waits for each answer; of the others none does."""

ALL_DONE_S = 90.0
"""How long after the last outage every envelope has to have its end."""

ANSWER_S = 240.0
"""How long a client waits for an answer: outages are within it."""

LEASES_S = 75.0
"""How long what a process has left in the ledger may be held after that: a reservation that was never dispatched, for a minute."""

RETRIES = RetryPolicy(base_s=0.2, max_s=2.0, attempt_timeout_s=4.0)
SCHEMA = {
    "$id": "advice.v1",
    "type": "object",
    "required": ["action", "size"],
    "additionalProperties": False,
    "properties": {"action": {"enum": ["buy", "sell", "wait"]}, "size": {"type": "number"}},
}


def envelope_of(number: int) -> LLMEnvelope:
    """Build an envelope; one in five is an execution."""
    builder = EnvelopeBuilder()
    others = (builder.for_planning, builder.for_analysis, builder.for_general)
    made = builder.for_execution() if number % 5 == 0 else others[number % 3]()
    return (
        made
        .with_instructions("Advise.")
        .with_context({"n": number})
        .with_output_schema(SCHEMA)
        .with_provider(LLMProvider("stub"), MODEL)
        .with_budget(max_output_tokens=64, thinking_budget=0)
        .with_retry_policy(RETRIES)
        .with_trace(f"trace-{number // A_TRACE}")
        .with_idempotency_key(f"call-{number}")
        .build()
    )


@dataclass
class Client:
    """Puts envelopes on the bus at a pace, and waits for the answers to some."""

    size: Size
    sent: list[Sent] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    replies: dict[str, str] = field(default_factory=dict)
    published_again: int = 0

    async def run(self, gateway: StructuredGateway) -> None:
        """Send all, each chain in its order."""
        begin = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for first in range(0, self.size.envelopes, A_TRACE):
                numbers = range(first, min(first + A_TRACE, self.size.envelopes))
                group.create_task(self._chain(gateway, numbers, begin))

    async def _chain(self, gateway: StructuredGateway, numbers: Sequence[int], begin: float) -> None:
        is_asked = numbers[0] // A_TRACE % ASKED == 0
        for number in numbers:
            await asyncio.sleep(max(0.0, begin + number / self.size.a_second - time.monotonic()))
            envelope = envelope_of(number)
            key = envelope.idempotency_key
            self.sent.append(Sent(key, envelope.envelope_id, envelope.trace_id, envelope.workflow))
            if is_asked:
                self.asked.add(envelope.envelope_id)
            await self._send(gateway, envelope, is_asked=is_asked)

    async def _send(self, gateway: StructuredGateway, envelope: LLMEnvelope, *, is_asked: bool) -> None:
        """Send it until the bus has it; what was perhaps there already is not run again."""
        while True:
            try:
                if not is_asked:
                    await gateway.submit(envelope)
                    return
                async with asyncio.timeout(ANSWER_S):
                    answer = await gateway.ask(envelope)
            except BusError:
                self.published_again += 1
                await asyncio.sleep(1.0)
            except TimeoutError:
                return
            else:
                self.replies[envelope.envelope_id] = (
                    answer.reason.category if isinstance(answer, NoDecision) else answer.interaction_id
                )
                return


@dataclass
class LogReader:
    """Reads what the logs in the folders below `folder` have more each time."""

    folder: Path
    logs: Logs = field(default_factory=Logs)
    _read: dict[Path, int] = field(default_factory=dict)

    def read(self) -> Logs:
        """Read all whole lines that are new."""
        for path in sorted(self.folder.glob("*/interactions.jsonl")):
            for line in self._lines(path):
                self.logs.add(line)
        return self.logs

    def read_last(self, name: str) -> None:
        """Read the log of a worker whose folder is about to be deleted: the next one there is another."""
        self.read()
        self._read.pop(self.folder / name / "interactions.jsonl", None)

    def _lines(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            for line in file:
                if line.endswith(b"\n"):
                    self._read[path] = self._read.get(path, 0) + len(line)
                    yield line


async def letters_of(place: Place) -> dict[str, str]:
    """Return the reasons of dead letters, by envelope."""
    broker = place.broker()
    try:
        letters = [read_dead_letter(each.message) async for each in broker.scan(DEAD_LETTERS)]
    finally:
        await broker.aclose()
    return {each.envelope_id: f"{each.reason}: {each.detail}" for each in letters}


async def topic_of(place: Place) -> tuple[frozenset[str], int]:
    """Return the ids of interactions on the topic of records, and how many messages it has: by kcat, if that is installed."""
    kcat = shutil.which("kcat")
    if kcat and isinstance(place.bus, KafkaService):
        where = ("-b", place.bus.bootstrap_servers, "-t", RECORDS.name)
        process = await asyncio.create_subprocess_exec(
            kcat, "-C", "-e", "-q", "-o", "beginning", *where, "-f", "%s\n", stdout=asyncio.subprocess.PIPE
        )
        lines = (await process.communicate())[0].splitlines()
    else:
        broker = place.broker()
        try:
            lines = [each.message.value async for each in broker.scan(RECORDS)]
        finally:
            await broker.aclose()
    logs = Logs()
    for line in lines:
        logs.add(line)
    return frozenset(logs.interactions), len(lines)


async def archived(place: Place) -> tuple[Logs, int]:
    """Archive what is on the topic; return what the archive holds, and the exit code of its check."""
    folder = place.folder / "archives" / "all"
    where = ("--bus", place.bus_url, "--store", str(folder))
    codes = []
    for words in (("archive", "--until-end"), ("archive", "check")):
        process = await asyncio.create_subprocess_exec(
            str(PROGRAM), *words, *where, stdout=asyncio.subprocess.DEVNULL
        )
        codes.append(await process.wait())
    return LogReader(folder.parent).read(), max(codes)


async def all_done(client: Client, reader: LogReader, place: Place) -> float:
    """Wait until each envelope has its end, within a bound; return how long it took."""
    begin = time.monotonic()
    wanted = {each.envelope_id for each in client.sent}
    while time.monotonic() < begin + ALL_DONE_S:
        left = wanted - (await asyncio.to_thread(reader.read)).finished
        if not left or (len(left) < len(wanted) / 20 and left <= {*await letters_of(place)}):
            break
        await asyncio.sleep(0.25)
    return time.monotonic() - begin


async def booked_by(place: Place) -> tuple[list[Booked], int, int]:
    """Return the charges that the ledger knows one by one, and what its counter of the tenant has spent and holds."""
    ledger = RedisLedger(place.redis.url)
    try:
        entries = await ledger.entries(DEFAULT_TENANT)
        balances = await ledger.balances(DEFAULT_TENANT)
    finally:
        await ledger.aclose()
    of_all = next(each for each in balances if (each.scope, each.window) == (ScopeKind.TENANT, Window.NONE))
    booked = [
        Booked(key, attempt, each.state, each.charged.nusd)
        for each in entries
        for _, key, attempt in [parts_of(each.request.reservation_id)]
    ]
    return booked, of_all.spent.nusd, of_all.held.nusd


async def nothing_held(place: Place) -> float:
    """Wait until every lease in the ledger is over, within a bound; return how long it took."""
    begin = time.monotonic()
    while (await booked_by(place))[2] and time.monotonic() < begin + LEASES_S:  # noqa: ASYNC110 - of a server
        await asyncio.sleep(0.5)
    return time.monotonic() - begin


async def run(place: Place, size: Size, *, loses_folder: bool = False, sets_back: bool = False) -> bool:
    """Make a run and print what came of it; return whether every promise holds.

    With `loses_folder` a worker's folder is deleted meanwhile, and the archive is held against everything in place of the logs.
    With `sets_back` the Redis of ledger and claims is set back meanwhile, and the ledger rebuilt from the logs.
    """
    client, reader = Client(size), LogReader(place.logs)
    fleet = Fleet(place, before_loss=reader.read_last if loses_folder else None, sets_back=sets_back)
    config = load_config(place.config)
    with fleet.running():
        await fleet.serving()
        begin = time.monotonic()
        async with remote_gateway(config, name="chaos") as gateway, asyncio.TaskGroup() as group:
            group.create_task(client.run(gateway))
            await fleet.suffer(size)
        seconds = time.monotonic() - begin
        rest_s = await all_done(client, reader, place)
        held_s = await nothing_held(place)
        exits = await fleet.end()
    booked, spent, held = await booked_by(place)
    topic, messages = await topic_of(place)
    logs, archive_exit = await archived(place) if loses_folder else (reader.read(), 0)
    evidence = Evidence(
        client.sent,
        logs,
        read_invoice(place.invoice.read_text("utf-8").splitlines()),
        booked,
        spent,
        held,
        await letters_of(place),
        client.replies,
        frozenset(client.asked),
        topic,
        exits,
        was_set_back=sets_back,
        unkept=fleet.unkept(),
    )
    done = ", ".join(f"{count} {what}" for what, count in fleet.done.items())
    print(f"\n{len(fleet.workers)} workers, {size.envelopes:,} envelopes in {seconds:.0f} s; {done}")
    print(
        f"all done {rest_s:.1f} s after, nothing held {held_s:.1f} s later; {client.published_again} times published again; {evidence.logs.records:,} records in logs"
    )
    print(
        "workers warned of: "
        + (", ".join(f"{name} {count}" for name, count in fleet.warnings().most_common()) or "nothing")
    )
    print(
        f"the topic of records has {messages:,} messages"
        + ("; what follows is held against the archive" if loses_folder else "")
    )
    faults = [*fleet.died, *([f"archive ended with {archive_exit}"] if archive_exit else [])]
    for line in faults:
        print(f"X {line}")
    return print_checks(checks_of(evidence)) and not faults


def main() -> int:
    """Print the table; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "--quick", action="store_true", help="800 envelopes and shorter outages, in under a minute"
    )
    arguments.add_argument(
        "--keep", metavar="DIR", help="keep logs, invoice and what the workers said in DIR"
    )
    arguments.add_argument(
        "--bus", type=Bus, choices=list(Bus), default=Bus.KAFKA, help="what the bus is on (kafka)"
    )
    losses = arguments.add_mutually_exclusive_group()
    losses.add_argument(
        "--lose-folder",
        action="store_true",
        help="delete the folder of a worker, and judge the archive in place of the logs",
    )
    losses.add_argument(
        "--set-back",
        action="store_true",
        help="put older files in the place of those of the ledger's Redis, and rebuild the ledger",
    )
    given = arguments.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it says that the servers are away: they are
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    folder = Path(given.keep or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with placed(folder, given.bus) as place:
            size = QUICK if given.quick else FULL
            holds = asyncio.run(run(place, size, loses_folder=given.lose_folder, sets_back=given.set_back))
    finally:
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
