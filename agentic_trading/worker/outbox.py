"""Send the lines of the log to the bus, byte for byte, and let deliveries wait for their line."""

import asyncio
import json
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
from agentic_trading.files import read_file, replace_file
from agentic_trading.ids import random_id
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.store import GENESIS, ChainedRecord, InteractionStore
from agentic_trading.logger import get_logger
from agentic_trading.worker.error_boundary import UnstreamedError

log = get_logger()

DRAIN_S: Final = 10.0
AWAY_S: Final = 1.0
"""How long to wait after a stop if the bus is known to be unavailable."""

FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 5.0
SAVE_EVERY_S: Final = 0.2
SMALL_BATCH: Final = 50
"""Larger batches are converted to messages in a thread. 2,000 messages take 30 ms, which would block the
loop."""


@dataclass(frozen=True, slots=True)
class OutboxCursor:
    """The last line of the log `log_id` that the bus has acknowledged, by number and hash."""

    log_id: str
    seq: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True)
class OutboxLag:
    """The lines that the bus does not have yet.

    `lines` is their number, `oldest_s` the age of the oldest one in seconds, and `problem` the reason.
    `left_out` is the number of lines since the start that were too large for the bus, or are records unknown
    to this release. They are only in the log.
    """

    lines: int
    oldest_s: float
    problem: str
    left_out: int


class Outbox:
    """Send every line of a log to the bus, in order.

    `streaming` opens and closes an outbox. The cursor is in a file next to the log, or only in memory for an
    in-memory log. It is never ahead of the bus. After a crash, some lines are sent twice, with the same id.
    If the cursor belongs to another log, the log gets a new id, and is sent from its first line.
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
        """The last line that the bus has acknowledged."""
        return self._cursor

    @property
    def problem(self) -> str:
        """Why no lines are sent now, or an empty string."""
        return self._problem

    async def reached(self, seq: int) -> None:
        """Return when the bus has all lines up to number `seq`.

        After `stop`, this waits for `drain_s` at most, or for a second if the bus is unavailable.

        Raises `UnstreamedError` when this time is over or the outbox has ended. The line is in the log, and
        the next outbox will send it.
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
        """Limit the wait of all calls of `reached` from now on. Repeated calls have no effect."""
        if not self._is_stopping:
            self._is_stopping = True
            for seq, _, future in self._waiting:
                self._give_up_later(seq, future)

    async def lag(self) -> OutboxLag:
        """Return the lag of the bus. Raises `StoreError` if the log cannot be written."""
        head, _ = await self._store.head()
        since = self._unsent_since
        oldest_s = 0.0 if since is None else self._clock.monotonic() - since
        return OutboxLag(max(0, head - self._cursor.seq), oldest_s, self._problem, self._left_out)

    async def open(self) -> None:
        """Find the line to continue from.

        The log's id is written to disk before a line is sent with it.
        """
        await self._store.head()  # creates a missing log
        known = await asyncio.to_thread(_read, self._file)
        if known is not None and await self._is_of_this_log(known):
            self._cursor = known
        else:  # `sync`, because another id after a power cut would send all lines again
            await self.save(sync=True)

    async def run(self) -> None:
        """Send the lines of the log, and new ones, until cancelled.

        If the log or the bus fails for good, this returns without an error.
        """
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
        """Wait up to `drain_s` until all current lines are sent, then write the cursor to disk."""
        self.stop()
        with suppress(StoreError):  # the next outbox sends the remaining lines of a failed log
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
        """Write the cursor to disk.

        If it stays behind after a crash or a full disk, some lines are sent twice. With `sync`, it survives a
        power cut, and `StoreError` is raised if it cannot be written.
        """
        self._saved_at = self._clock.monotonic()
        if self._file is None:
            return
        try:
            async with self._saving:
                await asyncio.to_thread(_write, self._file, self._cursor, sync=sync)
        except OSError as e:
            if sync:
                raise StoreError(self._file, f"cannot be written ({e.strerror}). Allow writing it.") from e
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
                self._leave_out(line.seq, f"the record is unknown to this release ({e!r})")
        return messages

    async def _send(self, messages: Sequence[Message]) -> None:
        """Publish messages in order, except those that are too large.

        A rejected batch is halved to find them.
        """
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
    """Send a log to the bus while the block runs.

    At its end, send the remaining lines within `drain_s`. An unreachable broker is retried and does not
    raise. `Outbox.lag` shows the problem.
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
    """Return the path of a log's cursor, next to the log."""
    return log_file.with_suffix(".outbox.json")


def _may_pass(e: BaseException) -> bool:
    """Whether to retry: all errors except a closed bus and a message that is too large."""
    return isinstance(e, Exception) and not isinstance(e, BusClosedError | MessageTooLargeError)


def _read(path: Path | None) -> OutboxCursor | None:
    """Return the cursor in a file, or None if it is missing or invalid."""
    if path is None or not path.is_file():
        return None
    try:
        fields = json.loads(read_file(path))
        return OutboxCursor(str(fields["log_id"]), int(fields["seq"]), str(fields["hash"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        log.warning("outbox_cursor_unreadable", path=str(path))
        return None


def _write(path: Path, cursor: OutboxCursor, *, sync: bool) -> None:
    replace_file(path, json.dumps(asdict(cursor)).encode(), sync=sync)
