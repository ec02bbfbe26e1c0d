"""Run a program again on the record of its calls, and compare its attempts with the recorded ones."""

import asyncio
import signal
from collections.abc import AsyncIterable, Mapping, Sequence
from contextlib import aclosing
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from pydantic import BaseModel

from agentic_trading.canonical import canonical_bytes
from agentic_trading.llm.envelope import LLMEnvelope, ResponseFormat
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import LOG_NAME
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.recorded_gateway import recorded_attempts_in
from agentic_trading.platform.settings import replay_environment
from agentic_trading.replay import request_changes
from agentic_trading.server.serving import ServeOptions, serve_api

MOST_NAMED: Final = 10
"""The misses that a report names."""

MOST_COMPARED: Final = 1000
"""The most unused records that one miss is compared with, because each comparison reads two requests."""

_STDERR: Final = 2

COMPARED: Final = (
    "raw_output", "parsed_output", "validation_passed", "validation_errors", "stop_reason", "model", "tool_called",
)  # fmt: skip
"""The fields of a result that are compared, with the category of its failure."""


class CommandReplay(BaseModel, frozen=True):
    """The result of running a program on its record.

    Attributes:
        identical: Whether each attempt was made again, and has the recorded result, and the program ended with 0.
        exit_code: The exit code of the program. Negative: the number of the signal that ended it.
        recorded: The number of recorded attempts.
        matched: The number of attempts with the recorded result.
        different: The number of attempts with another result than the recorded one.
        misses: The number of attempts without a record.
        unused: The number of recorded attempts that were not made again.
        recorded_digest, digest: The digest of the recorded results and of those of the replay. It covers tenant,
            agent, step, request hash and attempt number, and `COMPARED`. The order of the calls does not matter.
        missed: The messages of the first misses, and the first differences.

    """

    identical: bool
    exit_code: int
    recorded: int
    matched: int
    different: int
    misses: int
    unused: int
    recorded_digest: str
    digest: str
    missed: tuple[str, ...] = ()


async def replay_command(
    record: Path, words: Sequence[str], *, stdout_is_ours: bool = False
) -> CommandReplay:
    """Run a program on a record, and compare. The record is only read.

    A gateway that the program opens with `local_gateway` gets recorded answers. If the record has calls of the HTTP
    server, one is started on a free port, and the variables of the SDKs name its URL. The network of the program
    is not blocked.

    Args:
        record: A log, or the folder of a log.
        words: The program and its arguments.
        stdout_is_ours: Whether the program's output goes to standard error.

    Raises:
        OptionError: If the record or the program cannot be found.
        StoreError: If a log cannot be read.
        ConfigError: If the configuration or an API key is invalid.

    """
    comparison = _Comparison()
    await comparison.read(record)
    with TemporaryDirectory(prefix="agentic-replay-") as name:
        place = Path(name)
        gateways = place / "gateways"
        await asyncio.to_thread(gateways.mkdir)

        async def run(url: str | None) -> int:
            return await _run(words, replay_environment(record, gateways, url), is_quiet=stdout_is_ours)

        code = await (_served(record, place / "server", run) if comparison.has_clients else run(None))
        for log in sorted(await asyncio.to_thread(lambda: [*place.rglob(LOG_NAME)])):
            await comparison.compare(recorded_attempts_in(log, option="the replay"))
    return comparison.report(code)


async def _served(record: Path, folder: Path, run: Any) -> int:
    """Run the program with a server of the recorded answers. Return its exit code."""
    ended: list[int] = []
    failed: list[OptionError] = []

    async def during(url: str) -> None:
        try:
            ended.append(await run(url))
        except OptionError as e:  # kept, because a task group of the server would wrap it
            failed.append(e)

    options = ServeOptions(None, "127.0.0.1", 0, folder, record, drain_s=1.0)
    await serve_api(options, lambda _line: None, during=during)
    if failed:
        raise failed[0]
    return ended[0] if ended else -signal.SIGTERM  # a signal stopped the server and the program


async def _run(words: Sequence[str], environment: Mapping[str, str], *, is_quiet: bool) -> int:
    try:
        process = await asyncio.create_subprocess_exec(
            *words, env=dict(environment), stdout=_STDERR if is_quiet else None
        )
    except OSError as e:
        allowed = "a program and its arguments, such as `python my_agent.py`"
        raise OptionError("COMMAND", f"{words[0]!r} ({e.strerror})", allowed) from e
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


class _Comparison:
    """The recorded attempts of a log, and those of a replay."""

    def __init__(self) -> None:
        self.has_clients = False
        # By tenant, agent, step, request hash and attempt: the hashes of the recorded results not seen again.
        self._left: dict[tuple[Any, ...], list[bytes]] = {}
        self._requests: dict[tuple[Any, ...], LLMEnvelope] = {}
        self._recorded: list[bytes] = []
        self._made: list[bytes] = []
        self._matched = self._different = 0
        self._missed: list[LLMInteraction] = []
        self._misses = 0
        self._changed: list[str] = []

    async def read(self, record: Path) -> None:
        """Read the record."""
        async with aclosing(recorded_attempts_in(record, option="FOLDER")) as attempts:
            async for attempt in attempts:
                self.has_clients |= attempt.envelope.response_format is ResponseFormat.VERBATIM
                key = _key(attempt)
                line = _line(key, attempt)
                self._recorded.append(line)
                self._left.setdefault(key, []).append(line)
                if len(self._requests) < MOST_COMPARED:
                    self._requests.setdefault(key, attempt.envelope)

    async def compare(self, attempts: AsyncIterable[LLMInteraction]) -> None:
        """Compare the attempts of a replay."""
        async for attempt in attempts:
            key = _key(attempt)
            line = _line(key, attempt)
            self._made.append(line)
            left = self._left.get(key, [])
            if line in left:
                left.remove(line)
                self._matched += 1
            elif left and _is_answered(attempt):
                left.pop(0)
                self._different += 1
                envelope = attempt.envelope
                self._changed.append(
                    f"another result than recorded: agent {envelope.agent_id!r}, request {envelope.request_hash}, "
                    f"attempt {attempt.result.attempt_number}"
                )
            else:
                self._misses += 1
                if len(self._missed) < MOST_NAMED:
                    self._missed.append(attempt)

    def report(self, exit_code: int) -> CommandReplay:
        """Return the result."""
        digests = [sha256(b"".join(sorted(lines))).hexdigest() for lines in (self._recorded, self._made)]
        return CommandReplay(
            identical=digests[0] == digests[1] and exit_code == 0,
            exit_code=exit_code,
            recorded=len(self._recorded),
            matched=self._matched,
            different=self._different,
            misses=self._misses,
            unused=sum(map(len, self._left.values())),
            recorded_digest=digests[0],
            digest=digests[1],
            missed=(*map(self._explained, self._missed), *self._changed)[:MOST_NAMED],
        )

    def _explained(self, missed: LLMInteraction) -> str:
        """Return the message of a miss, with the changes of the nearest unused record."""
        failure = missed.result.failure
        message = "no recorded answer" if failure is None else failure.description
        if missed.envelope.response_format is ResponseFormat.VERBATIM:
            return message  # the server has named the nearest record
        unused = [
            envelope
            for key, envelope in self._requests.items()
            if self._left[key] and envelope.tenant_id == missed.envelope.tenant_id
            and envelope.response_format is not ResponseFormat.VERBATIM
        ]  # fmt: skip
        nearest = min((request_changes(one, missed.envelope) for one in unused), key=len, default=[])
        return f"{message}. The nearest unused record differs in {'; '.join(nearest)}" if nearest else message


def _key(attempt: LLMInteraction) -> tuple[Any, ...]:
    # Without the occurrence, because a program that was started twice has counted from 0 twice.
    envelope = attempt.envelope
    place = (envelope.tenant_id, envelope.agent_id, envelope.step)
    return (*place, envelope.request_hash, attempt.result.attempt_number)


def _line(key: tuple[Any, ...], attempt: LLMInteraction) -> bytes:
    result = attempt.result
    fields = {name: getattr(result, name) for name in COMPARED}
    category = None if result.failure is None else str(result.failure.category)
    return sha256(canonical_bytes([*key, fields, category])).digest()


def _is_answered(attempt: LLMInteraction) -> bool:
    failure = attempt.result.failure
    return failure is None or failure.category is not FailureKind.REPLAY_MISS
