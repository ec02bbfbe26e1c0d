"""Events of the log: a header and a body by kind, with the kinds of runs.

Logs, buses and indexes read headers only, so that kinds and fields they do not know pass through them unchanged. A
reader that looks inside asks the `Kinds` of a package for the body.
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
    """One fact of a trace, in the same log as the interactions.

    `causation_id` is the id of the direct cause (an event, an envelope or an interaction). `as_of` is the market's
    time, `time` when it was recorded. `body` is plain JSON (Decimals as strings).
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
        """The body in canonical JSON; raises `CanonicalError` for one that has none."""
        return field_types.json_of(self.__dict__["body"])

    @cached_property
    def wire(self) -> bytes:
        """The event as it stands on the wire and in the log: canonical JSON."""
        if self.model_extra:
            return canonical_bytes({**self.model_dump(), **self.model_extra})
        return assembled_bytes({**self.__dict__, "body": Fragment(self.body_json)})

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Read an event; raises pydantic's `ValidationError` for anything else."""
        return cls.model_validate_json(raw)


_IDS: Final = ("kind", "id", "trace_id", "causation_id", "tenant_id")
_ids_of = attrgetter(*_IDS)


def check_event(event: Event) -> None:
    """Raise `RecordError` for an event with an id, or a kind, of more than `MAX_ID_BYTES`; older logs may hold such."""
    problems = field_types.long_ids(_IDS, _ids_of(event))
    if problems:
        raise RecordError(f"{event.id[:40]}…" if len(event.id) > 40 else event.id, "; ".join(problems))


PLATFORM: Final = "*"
"""The tenant that is the platform itself: the events of a log or a run are its own. No other tenant has this name."""


class EventBody(BaseModel, frozen=True):
    """What the events of one kind say. A kind is `noun.past_participle`, and its noun is a namespace with one owner.

    A kind gains a field only with a default; anything else is a new kind. Unknown fields stay in the event.
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
        """Return the event that has this body."""
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
        """Raise `ValueError` for a kind that two of them claim."""
        self.bodies = bodies
        self._by_kind: dict[str, type[B]] = {}
        for body in bodies:
            if body.KIND in self._by_kind:
                raise ValueError(f"kind {body.KIND} is claimed twice; allowed is one body for each")
            self._by_kind[body.KIND] = body

    @property
    def namespaces(self) -> frozenset[str]:
        """The first words of the kinds."""
        return frozenset(kind.partition(".")[0] for kind in self._by_kind if "." in kind)

    def of(self, event: Event) -> B | None:
        """Return the body of an event, or None for a kind that is not of this package.

        Unknown words of `Open` fields are kept. Raises `UnreadableBodyError` for a body that its kind does not allow.
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
        """Return the body of an event as `of` does, for a reader that must not pass over what it does not know.

        Raises `UnknownKindError` for an unknown kind in a namespace of this package, as a newer release may write it, and
        `UnreadableBodyError` for an unknown word.
        """
        body = self._read(event, None)
        if body is None and event.kind.partition(".")[0] in self.namespaces:
            raise UnknownKindError(event.id, event.kind, sorted(body.KIND for body in self.bodies))
        return body


class TailSetAside(EventBody, frozen=True):
    """A torn end of the log was set aside: so many `bytes`, kept in the file `kept_as` beside the log."""

    KIND = "log.tail_set_aside"

    bytes: int
    kept_as: str
    sha256: str


class RunData(BaseModel, frozen=True):
    """One feed of a run, as it was named."""

    name: str
    symbol: str


class RunStarted(EventBody, frozen=True):
    """A process begins to write a run into the log.

    A run has one of these for each process that wrote it: the first has `start_number` 1, and one that goes on with what
    another one has left is `resumed`. `session_id` and `run_number` name the run. `first_seq` is the number of the log's
    line before the run's first one. `config_sha256` is that of the configuration, without secrets. Where several workers
    share a bus, a log `shares_traces`: what caused one of its records may be in the log of another one.
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
    """The file of the bars that a run was fed of one symbol: its rows without the header, and its SHA-256.

    `marks` are the first 16 hexadecimal digits of the SHA-256 of the file up to and with each 256th row: they say about
    where a changed file parts from this one.
    """

    symbol: str
    rows: int
    sha256: str
    marks: tuple[str, ...] = ()


class RunEnded(EventBody, frozen=True):
    """The process of a `run.started`, its cause, stops writing; a process that is killed leaves none of these.

    The log had `lines` lines before this one, the last with the hash `head`. `interrupted` says that the run did not come
    to its end: by a signal, or by an error. `digest` is that of the decision log, `bars` are those of all processes of
    the run together.
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
    """The log is an archive: it has the records of other logs, in the order in which they came.

    What a `run.ended` in it says of lines is about the log in which the run was written.
    """

    KIND = "archive.started"

    archive_id: str


class CallRequested(EventBody, frozen=True):
    """A client with a log of its own is about to publish an envelope; `envelope` is that, in canonical JSON what goes out.

    It is never on a bus. A secret in it is left out, and its hash then is that of another one.
    """

    KIND = "call.requested"

    envelope: field_types.JsonObject


class CallUnanswered(EventBody, frozen=True):
    """A call, whose `call.requested` is the cause, ended without its last attempt, for `reason`."""

    KIND = "call.unanswered"

    reason: FailureReason


class EnvelopeRefused(EventBody, frozen=True):
    """A worker did not run an envelope, because of its send time; nothing was paid.

    `reason` and `detail` are those of the dead letter. `sent_at` is None for a send time that is not a time.
    """

    KIND = "envelope.refused"

    envelope_id: str
    envelope_hash: str
    reason: str
    detail: str
    sent_at: field_types.Moment | None = None


LogBody = (
    TailSetAside | RunStarted | RunEnded | ArchiveStarted | CallRequested | CallUnanswered | EnvelopeRefused
)

KINDS = Kinds[LogBody](
    TailSetAside, RunStarted, RunEnded, ArchiveStarted, CallRequested, CallUnanswered, EnvelopeRefused
)
