"""Envelopes from a file or standard input: read, check, publish, and count them."""

import asyncio
import json
import os
import stat
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from agentic_trading.bus.errors import BusError
from agentic_trading.client.gateway import GatewayReply, StructuredGateway
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureReason, NoDecision
from agentic_trading.platform.clients import remote_gateway
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.port_adapters import first_useful

PROGRESS_EVERY = 1000
READ_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 24


@dataclass(slots=True)
class SubmissionCounts:
    """Counts of the lines so far."""

    submitted: int = 0
    answered: int = 0
    failed: int = 0
    wrong: int = 0
    waits: bool = False

    def text(self) -> str:
        """Return the counts as text."""
        answers = f", {self.answered:,} answered, {self.failed:,} of them failed" if self.waits else ""
        if self.waits and (open_ := self.submitted - self.answered):
            answers += f". {open_:,} are on the bus and will run. Repeat the command to print their answers"
        wrong = f". {self.wrong:,} lines were not envelopes and were skipped" if self.wrong else ""
        return f"submitted {self.submitted:,}{answers}{wrong}"


async def submit_lines(
    config: PlatformConfig,
    lines: AsyncIterator[tuple[int, bytes]],
    counts: SubmissionCounts,
    *,
    at_once: int,
    say: Callable[[str], None],
    answered: Callable[[str], None] | None = None,
) -> None:
    """Publish the envelopes in numbered lines. Envelopes of one trace keep their order.

    Args:
        config: The configuration. It must set `bus.url`.
        lines: Numbers and lines.
        counts: The counts, updated while lines are processed. After an error, they show how many were
            published.
        at_once: The most envelopes in flight.
        say: Prints messages about unreadable lines and progress.
        answered: Receives each outcome as a line of JSON. None does not wait for answers.

    Raises:
        OptionError: If the bus is missing, or messages cannot be signed.
        BusError: If the bus cannot be used.

    """
    counts.waits = answered is not None
    if config.sign_as and config.principals_folder is None:
        allowed = "a principals_folder in the configuration, with a key to sign with, or no --sign-as"
        raise OptionError("--sign-as", f"{config.sign_as}, but messages are not signed", allowed)
    if config.bus.url is None:
        raise OptionError(
            "--bus", "not set", "kafka://HOST:PORT, redis://HOST:PORT, or url in [bus] of the configuration"
        )
    try:
        async with (
            remote_gateway(config, name="submit") as gateway,
            asyncio.TaskGroup() as group,
        ):
            submission = _Submission(gateway, group, counts, answered, asyncio.Semaphore(at_once), say)
            async for number, line in lines:
                envelope = _read(number, line, say)
                if envelope is None:
                    counts.wrong += 1
                else:
                    await submission.add(envelope)
    except BaseExceptionGroup as errors:
        raise first_useful(errors) from errors


@dataclass(slots=True)
class _Submission:
    """Envelopes in flight, limited by `room`. Those of one trace run one after the other."""

    gateway: StructuredGateway
    group: asyncio.TaskGroup
    counts: SubmissionCounts
    answered: Callable[[str], None] | None
    room: asyncio.Semaphore
    say: Callable[[str], None]
    _queues: dict[str, list[LLMEnvelope]] = field(default_factory=dict)  # by trace under way

    async def add(self, envelope: LLMEnvelope) -> None:
        """Send an envelope when there is room, after earlier ones of its trace."""
        await self.room.acquire()
        queue = self._queues.get(envelope.trace_id)
        if queue is not None:
            queue.append(envelope)
            return
        self._queues[envelope.trace_id] = [envelope]
        self.group.create_task(self._serve(envelope.trace_id), name=f"submit-{envelope.trace_id}")

    async def _serve(self, trace_id: str) -> None:
        while queue := self._queues[trace_id]:
            try:
                await _send(self.gateway, queue.pop(0), self.counts, self.answered)
            finally:
                self.room.release()
            if self.counts.submitted % PROGRESS_EVERY == 0:
                self.say(self.counts.text())
        del self._queues[trace_id]


async def file_lines(file: str) -> AsyncGenerator[tuple[int, bytes]]:
    """Yield the numbered lines of a file, without empty ones. `-` is standard input.

    Raises:
        OptionError: If the file cannot be read.

    """
    number = 0
    async for line in _stream_lines() if _is_stream(file) else _disk_lines(file):
        number += 1
        if stripped := line.strip():
            yield number, stripped


def _is_stream(file: str) -> bool:
    return file == "-" and not stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)


async def _disk_lines(file: str) -> AsyncGenerator[bytes]:
    def read() -> list[bytes]:
        return opened.readlines(READ_BYTES)

    opened: IO[bytes]
    try:
        opened = sys.stdin.buffer if file == "-" else await asyncio.to_thread(Path(file).open, "rb")
    except OSError as e:
        raise OptionError(
            "FILE", f"{file}, which cannot be read ({e.strerror})", "a file of envelopes, or -"
        ) from e
    with opened:
        while lines := await asyncio.to_thread(read):
            for line in lines:
                yield line


async def _stream_lines() -> AsyncGenerator[bytes]:
    """Yield lines of standard input as they arrive."""
    # Not read in a thread, because a thread that waits for a line could not be cancelled.
    reader = asyncio.StreamReader(limit=LONGEST_LINE_BYTES)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer
    )
    try:
        while line := await reader.readline():
            yield line
    finally:
        transport.close()


async def _send(
    gateway: StructuredGateway,
    envelope: LLMEnvelope,
    counts: SubmissionCounts,
    answered: Callable[[str], None] | None,
) -> None:
    if answered is None:
        await gateway.submit(envelope)
        counts.submitted += 1
        return
    counts.submitted += 1  # before the wait, because it may be cancelled while the envelope is on the bus
    try:
        answer = await gateway.ask(envelope)
    except BusError:
        counts.submitted -= 1
        raise
    counts.answered += 1
    counts.failed += answer.failure is not None
    answered(_outcome_line(envelope, answer))


def _failure_of(failure: FailureReason) -> dict[str, str]:
    why = failure.description
    return {
        "kind": failure.category,
        "why": f"{why}: {failure.technical_details}" if failure.technical_details else why,
    }


def _outcome_line(envelope: LLMEnvelope, answer: GatewayReply) -> str:
    """Return the outcome of an envelope as a line of JSON."""
    failure = answer.failure
    line: dict[str, object] = {
        "envelope_id": envelope.envelope_id,
        "trace_id": envelope.trace_id,
        "actionable": answer.actionable,
        "failure": None if failure is None else _failure_of(failure),
    }
    if not isinstance(answer, NoDecision):
        result = answer.result
        line |= {
            "interaction_id": answer.interaction_id,
            "provider": result.provider,
            "model": result.model,
            "cost_nusd": result.cost_nusd,
            "text": result.raw_output,
        }
    return json.dumps(line, ensure_ascii=False)


def _read(number: int, line: bytes, say: Callable[[str], None]) -> LLMEnvelope | None:
    try:
        envelope = LLMEnvelope.from_wire(line)
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the line"
        say(f"line {number}: {place}: {first['msg']}. Allowed: an envelope as JSON")
        return None
    if not envelope.is_intact:
        say(f"line {number}: envelope_hash does not match the envelope. Allowed: the original hash, or none")
        return None
    return envelope
