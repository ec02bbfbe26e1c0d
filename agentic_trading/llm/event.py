"""Events of the log: a header, a body by kind, and the kinds of runs.

Logs, buses and indexes read headers only, so that unknown kinds and fields pass through them unchanged. To
read a body, use the `Kinds` of its package.
"""

from datetime import datetime
from functools import cached_property
from operator import attrgetter
from typing import ClassVar, Final, Generic, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError

from agentic_trading.canonical import Fragment, assembled_bytes, canonical_bytes
from agentic_trading.llm import fields as field_types
from agentic_trading.llm.errors import FailureReason, RecordError, UnknownKindError, UnreadableBodyError


class Event(field_types.RevalidatedModel, frozen=True, extra="allow"):
    """A fact of a trace, in the same log as the interactions.

    Attributes:
        causation_id: The id of the direct cause: an event, an envelope or an interaction.
        as_of: The market time.
        time: When it was recorded.
        body: Plain JSON, with Decimals as strings.

    """

    kind: str = Field(min_length=1)
    id: str
    trace_id: str
    causation_id: str = ""
    tenant_id: str
    as_of: field_types.Moment | None = None
    time: field_types.Moment
    body: field_types.LazyJsonObject = Field(default_factory=field_types.FrozenObject)

    @property
    def body_json(self) -> bytes:
        """The body in canonical JSON.

        Raises:
            CanonicalError: If the body has no canonical JSON.

        """
        return field_types.json_of(self.__dict__["body"])

    @cached_property
    def wire(self) -> bytes:
        """The event as canonical JSON for the bus and the log."""
        if self.model_extra:
            return canonical_bytes({**self.model_dump(), **self.model_extra})
        return assembled_bytes({**self.__dict__, "body": Fragment(self.body_json)})

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Read an event.

        Raises:
            ValidationError: A `ValueError` of pydantic, if the bytes are not an event.

        """
        return cls.model_validate_json(raw)


_IDS: Final = ("kind", "id", "trace_id", "causation_id", "tenant_id")
_ids_of = attrgetter(*_IDS)


def check_event(event: Event) -> None:
    """Raise `RecordError` if an id or the kind has more than `MAX_ID_BYTES`."""
    # Checked when an event is recorded and not when it is read, because older logs may hold longer ids.
    problems = field_types.long_ids(_IDS, _ids_of(event))
    if problems:
        raise RecordError(f"{event.id[:40]}…" if len(event.id) > 40 else event.id, "; ".join(problems))


PLATFORM: Final = "*"
"""The tenant id of the platform itself, for the events of a log or a run.

No other tenant has this name.
"""


class EventBody(BaseModel, frozen=True):
    """The body of the events of one kind.

    A kind is `noun.past_participle`. Its noun is a namespace with one owner. A kind may gain a field that has
    a default. Any other change needs a new kind. Unknown fields stay in the event.
    """

    KIND: ClassVar[str]

    def as_event(
        self,
        *,
        event_id: str,
        trace_id: str,
        tenant_id: str,
        time: datetime,
        causation_id: str = "",
        as_of: datetime | None = None,
    ) -> Event:
        """Return an event with this body."""
        return Event(
            kind=self.KIND,
            id=event_id,
            trace_id=trace_id,
            causation_id=causation_id,
            tenant_id=tenant_id,
            as_of=as_of,
            time=time,
            body=self.model_dump(mode="json"),
        )


B = TypeVar("B", bound=EventBody)


class Kinds(Generic[B]):
    """The kinds of one package: `Kinds[Triggered | Skipped](Triggered, Skipped)`."""

    def __init__(self, *bodies: type[B]) -> None:
        """Raise `ValueError` if two bodies have the same kind."""
        self.bodies = bodies
        self._by_kind: dict[str, type[B]] = {}
        for body in bodies:
            if body.KIND in self._by_kind:
                raise ValueError(f"kind {body.KIND} is claimed twice. Each kind has one body")
            self._by_kind[body.KIND] = body

    @property
    def namespaces(self) -> frozenset[str]:
        """The first words of the kinds."""
        return frozenset(kind.partition(".")[0] for kind in self._by_kind if "." in kind)

    def of(self, event: Event) -> B | None:
        """Return the body of an event, or None if its kind is not one of these.

        Unknown words of `Open` fields are kept.

        Raises:
            UnreadableBodyError: If the body does not fit its kind.

        """
        return self._read(event, field_types.ON_RECORD)

    def _read(self, event: Event, context: object) -> B | None:
        body = self._by_kind.get(event.kind)
        if body is None:
            return None
        try:
            return body.model_validate(event.body, context=context)
        except ValidationError as e:
            first = e.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(map(str, ("body", *first["loc"])))
            raise UnreadableBodyError(event.id, event.kind, place, first["msg"]) from e

    def must(self, event: Event) -> B | None:
        """Return the body of an event as `of` does, but do not skip unknown events.

        Use it where a skipped event would give a wrong result, such as a sum of money.

        Raises:
            UnknownKindError: If the kind is unknown, but in a namespace of this package. A newer release may
                write it.
            UnreadableBodyError: If the body does not fit its kind, or has an unknown word.

        """
        body = self._read(event, None)
        if body is None and event.kind.partition(".")[0] in self.namespaces:
            raise UnknownKindError(event.id, event.kind, sorted(body.KIND for body in self.bodies))
        return body


class TailSetAside(EventBody, frozen=True):
    """A torn end of the log was moved to another file.

    Attributes:
        bytes: Its length.
        kept_as: The name of that file, in the folder of the log.

    """

    KIND = "log.tail_set_aside"

    bytes: int
    kept_as: str
    sha256: str


class RunData(BaseModel, frozen=True):
    """A data feed of a run, with the names that it was given."""

    name: str
    symbol: str


class RunStarted(EventBody, frozen=True):
    """A process starts to write a run into the log.

    Each process that writes a run records one of these. `session_id` and `run_number` identify the run.

    Attributes:
        start_number: 1 for the first process of the run, then one higher for each.
        resumed: The process continues a run that another process left.
        config_sha256: The hash of the configuration without secrets.
        first_seq: The number of the log's last line before the run.
        shares_traces: Several workers share a bus. The cause of a record may be in the log of another worker.

    """

    KIND = "run.started"

    session_id: str
    run_number: int = 1
    start_number: int = 1
    resumed: bool = False
    mode: str
    provider: str = ""
    model: str = ""
    data: tuple[RunData, ...] = ()
    seed: str = ""
    package: str
    config_sha256: str = ""
    first_seq: int = 0
    shares_traces: bool = False


class BarChecksums(BaseModel, frozen=True):
    """The checksums of the bars of one symbol that a run read, as a file.

    Attributes:
        rows: The number of rows, without the header.
        sha256: The hash of the whole file.
        marks: After each 256th row, the first 16 hex digits of the hash up to there. They show about where a
            changed file differs.

    """

    symbol: str
    rows: int
    sha256: str
    marks: tuple[str, ...] = ()


class RunEnded(EventBody, frozen=True):
    """The process of a `run.started` stops writing. The start is its cause.

    A process that is killed records no end.

    Attributes:
        interrupted: The run did not complete, because of a signal or an error.
        digest: The hash of the decision log.
        lines: The number of lines in the log before this one.
        head: The hash of the last of them.
        bars: The bars of all processes of the run.

    """

    KIND = "run.ended"

    session_id: str
    run_number: int = 1
    bars_done: int = 0
    interrupted: bool = False
    digest: str | None = None
    lines: int
    head: str
    bars: tuple[BarChecksums, ...] = ()


class ArchiveStarted(EventBody, frozen=True):
    """The log is an archive: it has the records of other logs, in order of arrival.

    The line numbers in a `run.ended` refer to the log in which the run was written.
    """

    KIND = "archive.started"

    archive_id: str


class CallRequested(EventBody, frozen=True):
    """A client that keeps a log is about to publish an envelope.

    This event is never on a bus.

    Attributes:
        envelope: The envelope. Its canonical JSON is the published message. If a secret was removed from it,
            its checksum no longer matches.

    """

    KIND = "call.requested"

    envelope: field_types.JsonObject


class CallUnanswered(EventBody, frozen=True):
    """A call ended without its last attempt, for `reason`.

    Its `call.requested` is the cause.
    """

    KIND = "call.unanswered"

    reason: FailureReason


class EnvelopeRefused(EventBody, frozen=True):
    """A worker refused an envelope because of its send time. The call cost nothing.

    Attributes:
        reason: As in the dead letter.
        detail: As in the dead letter.
        sent_at: None if the send time is not a time.

    """

    KIND = "envelope.refused"

    envelope_id: str
    envelope_hash: str
    reason: str
    detail: str
    sent_at: field_types.Moment | None = None


class RequestQuoted(EventBody, frozen=True):
    """The request of a call repeats several earlier answers. Its cause is the call.

    Attributes:
        interactions: The interactions of these answers, oldest first. The newest one is the cause of the call.

    """

    KIND = "request.quoted"

    interactions: tuple[str, ...]


LogBody = (
    TailSetAside
    | RunStarted
    | RunEnded
    | ArchiveStarted
    | CallRequested
    | CallUnanswered
    | EnvelopeRefused
    | RequestQuoted
)

KINDS = Kinds[LogBody](
    TailSetAside,
    RunStarted,
    RunEnded,
    ArchiveStarted,
    CallRequested,
    CallUnanswered,
    EnvelopeRefused,
    RequestQuoted,
)
