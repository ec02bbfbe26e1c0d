"""Whatever belongs to a trace and is no call: a header that every reader knows, and a body that its kind names.

Logs, buses and indexes read headers only, so that kinds and fields they do not know pass through them unchanged. A
reader that looks inside asks the `Kinds` of a package for the body.
"""

from datetime import datetime
from functools import cached_property
from operator import attrgetter
from typing import ClassVar, Final, Generic, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError

from agentic_trading.canonical import Fragment, assembled_bytes, canonical_bytes
from agentic_trading.llm.errors import RecordError, UnknownKindError, UnreadableBodyError
from agentic_trading.llm.fields import (
    ON_RECORD,
    FrozenObject,
    LazyJsonObject,
    Moment,
    RevalidatedModel,
    json_of,
    long_ids,
)


class Event(RevalidatedModel, frozen=True, extra="allow"):
    """One fact of a trace, in the same log as the interactions.

    `causation_id` is the id of the direct cause (an event, an envelope or an interaction). `as_of` is the market's
    time, `time` when it was recorded. `body` is plain JSON (Decimals as strings).
    """

    kind: str = Field(min_length=1)
    id: str
    trace_id: str
    causation_id: str = ""
    tenant_id: str
    as_of: Moment | None = None
    time: Moment
    body: LazyJsonObject = Field(default_factory=FrozenObject)

    @property
    def body_json(self) -> bytes:
        """The body in canonical JSON; raises `CanonicalError` for one that has none."""
        return json_of(self.__dict__["body"])

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
    problems = long_ids(_IDS, _ids_of(event))
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
        return self._read(event, ON_RECORD)

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
