"""The log is the outbox: its lines go to the bus as they stand on disk, and a delivery may wait for the number of its line."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Final

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential

from agentic_trading.bus.errors import BusClosedError, MessageTooLargeError
from agentic_trading.bus.log_stream import NUMBER_HEADER, StreamedLine
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import RECORDS, Broker
from agentic_trading.cancellation import run_shielded
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.files import read_file
from agentic_trading.ids import random_id
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.store import GENESIS, ChainedRecord, InteractionStore
from agentic_trading.logger import get_logger
from agentic_trading.worker.error_boundary import UnstreamedError

log = get_logger()

DRAIN_S: Final = 10.0
AWAY_S: Final = 1.0
"""How long is waited after a stop for a bus that is known to be away."""

FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 5.0
SAVE_EVERY_S: Final = 0.2
SMALL_BATCH: Final = 50
"""Messages of a larger batch are made in a thread: 2,000 take 30 ms, in which the loop would serve nothing."""


@dataclass(frozen=True, slots=True)
class OutboxCursor:
    """How far the log `log_id` is sent: the number and the hash of the last line of which the bus said that it has it."""

    log_id: str
    seq: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True)
class OutboxLag:
    """How far the bus is behind the log: lines not sent, for how long the oldest of them waits, and why.

    `left_out` lines, since the start, were too large for the bus, or no record that is known here: they are in the log alone.
    """

    lines: int
    oldest_s: float
    problem: str
    left_out: int


class Outbox:
    """Send every line of a log to the bus, in order; `streaming` opens one and closes it.

    The cursor stands in a file beside the log, or nowhere for a log in memory. It is never ahead of the bus: after a crash
    some lines are sent twice, with the same id. A log that is not the one that the cursor speaks of gets an id of its own,
    and is sent from its first line.
    """

    def __init__(
        self,
        store: InteractionStore,
        broker: Broker,
        cursor_file: Path | None,
        *,
        clock: Clock,
        drain_s: float = DRAIN_S,
    ) -> None:
        self._store = store
        self._broker = broker
        self._file = cursor_file
        self._clock = clock
        self._drain_s = drain_s
        self._cursor = OutboxCursor(random_id())
        self._saved_at = clock.monotonic()
        self._unsent_since: float | None = None
        self._problem = ""
        self._left_out = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = count()
        self._saving = asyncio.Lock()
        self._is_stopping = False
        self._has_ended = False

    @property
    def cursor(self) -> OutboxCursor:
        """How far the log is sent."""
        return self._cursor

    @property
    def problem(self) -> str:
        """Why nothing is sent now; empty while it is."""
        return self._problem

    async def reached(self, seq: int) -> None:
        """Return when the bus has all lines up to number `seq`; after `stop`, wait for `drain_s` at most, or a second while it is away.

        Raises `UnstreamedError` when that is over, or nothing is sent any more: the line is in the log, and will be sent by
        the next outbox.
        """
        if self._cursor.seq >= seq:
            return
        if self._has_ended:
            raise UnstreamedError(seq, self._problem)
        future = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (seq, next(self._arrivals), future))
        if self._is_stopping:
            self._give_up_later(seq, future)
        await future

    def stop(self) -> None:
        """Let no call of `reached` wait for longer than a bound from now on. Harmless twice."""
        if not self._is_stopping:
            self._is_stopping = True
            for seq, _, future in self._waiting:
                self._give_up_later(seq, future)

    async def lag(self) -> OutboxLag:
        """Return how far the bus is behind; raises `StoreError` for a log that cannot be written."""
        head, _ = await self._store.head()
        since = self._unsent_since
        oldest_s = 0.0 if since is None else self._clock.monotonic() - since
        return OutboxLag(max(0, head - self._cursor.seq), oldest_s, self._problem, self._left_out)

    async def open(self) -> None:
        """Find out where to go on, and put the log's id beside it, on disk, before a line is sent under it."""
        await self._store.head()  # a log that was not there yet is now
        known = await asyncio.to_thread(_read, self._file)
        if known is not None and await self._is_of_this_log(known):
            self._cursor = known
        else:
            await self.save(sync=True)

    async def run(self) -> None:
        """Send what the log has and what comes, until cancelled; a log or a bus that is given up ends it, and raises nothing."""
        try:
            await self._follow()
        except (BusClosedError, StoreError) as e:
            self._problem = str(e)
            log.error("outbox_ended", seq=self._cursor.seq, reason=str(e))  # noqa: TRY400 - in one line
        finally:
            self._has_ended = True
            for seq, _, future in self._waiting:
                self._give_up(seq, future)

    async def _follow(self) -> None:
        async with aclosing(self._store.follow(self._cursor.seq)) as batches:
            async for batch in batches:
                self._unsent_since = self._clock.monotonic()
                if len(batch) > SMALL_BATCH:
                    messages = await asyncio.to_thread(self._messages, batch)
                else:
                    messages = self._messages(batch)
                await self._send(messages)
                self._unsent_since = None
                self._move(batch[-1])
                if self._clock.monotonic() - self._saved_at >= SAVE_EVERY_S:
                    await self.save()

    async def drain(self) -> None:
        """Wait until all that is in the log now is sent, for `drain_s` at most; then put the cursor on disk."""
        self.stop()
        with suppress(StoreError):  # of a log that gave up, the rest is sent by the next outbox
            head, _ = await self._store.head()
            try:
                await self.reached(head)
            except UnstreamedError:
                log.warning(
                    "outbox_behind",
                    lines=head - self._cursor.seq,
                    problem=self._problem or "no answer in time",
                )
        await self.save()

    async def save(self, *, sync: bool = False) -> None:
        """Put the cursor on disk; one that stays behind, by a crash or a full disk, means copies.

        With `sync` it outlives a power cut, and a `StoreError` says that it cannot be written.
        """
        self._saved_at = self._clock.monotonic()
        if self._file is None:
            return
        try:
            async with self._saving:
                await asyncio.to_thread(_write, self._file, self._cursor, sync=sync)
        except OSError as e:
            if sync:
                raise StoreError(self._file, f"cannot be written ({e.strerror}); allow writing it") from e
            log.warning("outbox_cursor_unwritten", path=str(self._file), reason=str(e))

    async def _is_of_this_log(self, known: OutboxCursor) -> bool:
        if known.seq == 0:
            return True
        head, _ = await self._store.head()
        if head < known.seq:
            return False
        async with aclosing(self._store.follow(known.seq - 1)) as batches:
            return (await anext(batches))[0].hash == known.hash

    def _messages(self, batch: Sequence[ChainedRecord]) -> list[Message]:
        messages = []
        for line in batch:
            try:
                messages.append(StreamedLine(line, self._cursor.log_id).message())
            except (ValueError, LookupError, TypeError) as e:  # a newer release has written it
                self._leave_out(line.seq, f"it is no record that is known here ({e!r})")
        return messages

    async def _send(self, messages: Sequence[Message]) -> None:
        """Publish messages in their order, without those that are too large: a batch is cut in two until they are found."""
        try:
            await self._publish(messages)
        except MessageTooLargeError as e:
            if len(messages) == 1:
                self._leave_out(int(messages[0].headers[NUMBER_HEADER]), str(e))
                return
            half = len(messages) // 2
            await self._send(messages[:half])
            await self._send(messages[half:])

    def _leave_out(self, seq: int, reason: str) -> None:
        self._left_out += 1
        log.error("line_left_out", log_id=self._cursor.log_id, seq=seq, reason=reason)

    async def _publish(self, messages: Sequence[Message]) -> None:
        retrying = AsyncRetrying(
            retry=retry_if_exception(_may_pass),
            wait=wait_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S),
            sleep=self._clock.sleep,
            before_sleep=self._note_problem,
            reraise=True,
        )
        await retrying(self._broker.publish_all, RECORDS, messages)
        if self._problem:
            log.info("outbox_goes_on", seq=self._cursor.seq)
            self._problem = ""

    def _note_problem(self, state: RetryCallState) -> None:
        problem = str(state.outcome.exception()) if state.outcome else ""
        if not self._problem:
            log.warning("outbox_waits", reason=problem)
        self._problem = problem

    def _move(self, last: ChainedRecord) -> None:
        self._cursor = replace(self._cursor, seq=last.seq, hash=last.hash)
        while self._waiting and self._waiting[0][0] <= last.seq:
            _, _, future = heappop(self._waiting)
            if not future.done():
                future.set_result(None)

    def _give_up_later(self, seq: int, future: "asyncio.Future[None]") -> None:
        longest_s = min(self._drain_s, AWAY_S) if self._problem else self._drain_s
        asyncio.get_running_loop().call_later(longest_s, self._give_up, seq, future)

    def _give_up(self, seq: int, future: "asyncio.Future[None]") -> None:
        if not future.done():
            future.set_exception(UnstreamedError(seq, self._problem))


@asynccontextmanager
async def streaming(
    store: InteractionStore,
    broker: Broker,
    cursor_file: Path | None,
    *,
    clock: Clock | None = None,
    drain_s: float = DRAIN_S,
) -> AsyncGenerator[Outbox]:
    """Send a log to the bus for as long as the block lasts, and what is left at its end for `drain_s` at most.

    A broker that cannot be reached ends nothing: it is tried again, and `Outbox.lag` says so.
    """
    outbox = Outbox(store, broker, cursor_file, clock=clock or SystemClock(), drain_s=drain_s)
    await outbox.open()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(outbox.run(), name="outbox")
        try:
            yield outbox
        finally:
            await run_shielded(outbox.drain())
            task.cancel()


def cursor_file_of(log_file: Path) -> Path:
    """Return where the cursor of a log stands: beside it."""
    return log_file.with_suffix(".outbox.json")


def _may_pass(e: BaseException) -> bool:
    """Whether to try again: whatever a broker raises ends no process, and shows in the lag."""
    return isinstance(e, Exception) and not isinstance(e, BusClosedError | MessageTooLargeError)


def _read(path: Path | None) -> OutboxCursor | None:
    """Return the cursor in a file; None where there is none, or what stands there is none."""
    if path is None or not path.is_file():
        return None
    try:
        fields = json.loads(read_file(path))
        return OutboxCursor(str(fields["log_id"]), int(fields["seq"]), str(fields["hash"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        log.warning("outbox_cursor_unreadable", path=str(path))
        return None


def _write(path: Path, cursor: OutboxCursor, *, sync: bool) -> None:
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(json.dumps(asdict(cursor)).encode())
        file.flush()
        if sync:
            os.fsync(file.fileno())
    new.replace(path)
    if sync:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
