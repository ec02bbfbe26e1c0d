"""The comparison of the attempts of a program with those of its record."""

from collections import Counter
from collections.abc import AsyncIterable, Mapping
from contextlib import aclosing
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from agentic_trading.audit.spend import reservation_of
from agentic_trading.canonical import canonical_bytes
from agentic_trading.governance import events as ledger_events
from agentic_trading.governance.limits import ScopeKind
from agentic_trading.llm.envelope import LLMEnvelope, ResponseFormat
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import Record
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.recorded_gateway import all_records_in
from agentic_trading.replay import request_changes
from agentic_trading.server.calls import key_name_of

MOST_NAMED: Final = 10
"""The misses, and the interrupted attempts, that a report names."""

MOST_COMPARED: Final = 1000
"""The most unused records that one miss is compared with, because each comparison reads two requests."""

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
        volatile: The number of matched attempts whose request differs in volatile texts.
        interrupted: The number of recorded attempts that were sent, and have no answer on record.
        repeated: The number of recorded requests with several results. The calls get them in their order.
        stopped: Whether a signal stopped the replay before the program had ended.
        keys: The number of recorded attempts by API key of `serve`. Attempts of gateways have none.
        recorded_digest, digest: The digest of the recorded results and of those of the replay. It covers tenant,
            agent, step, request hash and attempt number, and `COMPARED`. The order of the calls does not matter.
        missed: The messages of the first misses, and the first differences.
        unanswered: The messages of the first interrupted attempts.

    """

    identical: bool
    exit_code: int
    recorded: int
    matched: int
    different: int
    misses: int
    unused: int
    volatile: int = 0
    interrupted: int = 0
    repeated: int = 0
    stopped: bool = False
    keys: Mapping[str, int] = {}
    recorded_digest: str
    digest: str
    missed: tuple[str, ...] = ()
    unanswered: tuple[str, ...] = ()


class ReplayComparison:
    """The recorded attempts of a log, and those of a replay.

    Args:
        key: The API key whose attempts are compared. Empty: all attempts are.

    """

    def __init__(self, key: str = "") -> None:
        self.has_clients = False
        self._key = key
        # By tenant, agent, step, request hash and attempt: the hashes of the recorded results not seen again.
        self._left: dict[tuple[Any, ...], list[bytes]] = {}
        self._requests: dict[tuple[Any, ...], LLMEnvelope] = {}
        self._keys: Counter[str] = Counter()
        self._interrupted: dict[str, ledger_events.AttemptDispatched] = {}
        self._results: dict[tuple[Any, ...], set[bytes]] = {}
        self._recorded: list[bytes] = []
        self._made: list[bytes] = []
        self._matched = self._different = self._volatile = 0
        self._missed: list[LLMInteraction] = []
        self._misses = 0
        self._changed: list[str] = []

    async def read(self, record: Path) -> None:
        """Read the record. Raises `OptionError` if the API key has no call in it."""
        async with aclosing(all_records_in(record, option="FOLDER")) as records:
            async for one in records:
                self._read_step(one)
                if isinstance(one, LLMInteraction):
                    self._read_attempt(one)
        if self._key and self._key not in self._keys:
            known = ", ".join(sorted(self._keys)) or "no key, for a record without calls of `serve`"
            raise OptionError("--key", f"{self._key!r}, without a call in {record}", known)

    def _read_step(self, record: Record) -> None:
        """Keep the attempts that were sent until their ends are read."""
        reservation = reservation_of(record)
        body = ledger_events.KINDS.must(record) if isinstance(record, Event) else None
        if isinstance(body, ledger_events.AttemptDispatched):
            self._interrupted[body.reservation_id] = body
        elif reservation is not None and not isinstance(body, ledger_events.ReservationExpired):
            self._interrupted.pop(reservation, None)

    def _read_attempt(self, attempt: LLMInteraction) -> None:
        is_of_client = attempt.envelope.response_format is ResponseFormat.VERBATIM
        name = key_name_of(attempt.envelope.agent_type) if is_of_client else ""
        if is_of_client:
            self._keys[name] += 1
        if self._key not in ("", name):
            return
        self.has_clients |= is_of_client
        key = _key(attempt)
        line = _line(key, attempt)
        self._recorded.append(line)
        self._left.setdefault(key, []).append(line)
        self._results.setdefault((name, *key), set()).add(line)
        if len(self._requests) < MOST_COMPARED:
            self._requests.setdefault(key, attempt.envelope)

    async def compare(
        self, attempts: AsyncIterable[LLMInteraction], matched: Mapping[str, str] | None = None
    ) -> None:
        """Compare the attempts of a replay.

        Args:
            attempts: The attempts.
            matched: The request hash of the record by the id of the envelope that got its answer, for requests that
                differ from it in volatile texts.

        """
        async for attempt in attempts:
            request_hash = (matched or {}).get(attempt.envelope.envelope_id, "")
            key = _key(attempt, request_hash)
            line = _line(key, attempt)
            self._made.append(line)
            self._volatile += bool(request_hash)
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

    def report(self, exit_code: int, *, stopped: bool = False) -> CommandReplay:
        """Return the result."""
        digests = [sha256(b"".join(sorted(lines))).hexdigest() for lines in (self._recorded, self._made)]
        unanswered = [*map(_unanswered, self._own_interrupted())]
        return CommandReplay(
            identical=digests[0] == digests[1] and exit_code == 0 and not stopped,
            exit_code=exit_code,
            recorded=len(self._recorded),
            matched=self._matched,
            different=self._different,
            misses=self._misses,
            unused=sum(map(len, self._left.values())),
            volatile=self._volatile,
            interrupted=len(unanswered),
            repeated=sum(len(lines) > 1 for lines in self._results.values()),
            stopped=stopped,
            keys=dict(sorted(self._keys.items())),
            recorded_digest=digests[0],
            digest=digests[1],
            missed=(*map(self._explained, self._missed), *self._changed)[:MOST_NAMED],
            unanswered=(*unanswered,)[:MOST_NAMED],
        )

    def _own_interrupted(self) -> list[ledger_events.AttemptDispatched]:
        """Return the interrupted attempts of the compared agents, because an event does not name its API key."""
        own = {(tenant, agent) for tenant, agent, *_ in self._left}
        found = self._interrupted.values()
        return [
            one for one in found if not self._key or (_tenant(one), one.scopes.get(ScopeKind.AGENT)) in own
        ]

    def _explained(self, missed: LLMInteraction) -> str:
        """Return the message of a miss, with the changes of the nearest unused record."""
        envelope, failure = missed.envelope, missed.result.failure
        interrupted = [
            one for one in self._interrupted.values()
            if (_tenant(one), one.request_hash) == (envelope.tenant_id, envelope.request_hash)
        ]  # fmt: skip
        if interrupted:
            return f"asked again, and has no recorded answer: {_unanswered(interrupted[0])}"
        message = "no recorded answer" if failure is None else failure.description
        if envelope.response_format is ResponseFormat.VERBATIM:
            return message  # the server has named the nearest record
        unused = [
            one
            for key, one in self._requests.items()
            if self._left[key] and one.tenant_id == envelope.tenant_id
            and one.response_format is not ResponseFormat.VERBATIM
        ]  # fmt: skip
        nearest = min((request_changes(one, envelope) for one in unused), key=len, default=[])
        return f"{message}. The nearest unused record differs in {'; '.join(nearest)}" if nearest else message


def _tenant(sent: ledger_events.AttemptDispatched) -> str:
    return sent.scopes.get(ScopeKind.TENANT, "")


def _unanswered(sent: ledger_events.AttemptDispatched) -> str:
    agent = sent.scopes.get(ScopeKind.AGENT, "")
    return (
        f"agent {agent!r}, request {sent.request_hash}, attempt {sent.attempt} to {sent.provider}/{sent.model}. "
        f"Its process was killed, or still runs, before the answer was on record"
    )


def _key(attempt: LLMInteraction, request_hash: str = "") -> tuple[Any, ...]:
    # Without the occurrence, because a program that was started twice has counted from 0 twice.
    envelope = attempt.envelope
    place = (envelope.tenant_id, envelope.agent_id, envelope.step)
    return (*place, request_hash or envelope.request_hash, attempt.result.attempt_number)


def _line(key: tuple[Any, ...], attempt: LLMInteraction) -> bytes:
    result = attempt.result
    fields = {name: getattr(result, name) for name in COMPARED}
    category = None if result.failure is None else str(result.failure.category)
    return sha256(canonical_bytes([*key, fields, category])).digest()


def _is_answered(attempt: LLMInteraction) -> bool:
    failure = attempt.result.failure
    return failure is None or failure.category is not FailureKind.REPLAY_MISS
