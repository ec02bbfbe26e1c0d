"""Orders and fills that agents record, and the state of a trace."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from pydantic import BaseModel

from agentic_trading.audit.trace import CallNode, TraceTree
from agentic_trading.clock import Clock
from agentic_trading.ids import derived_id, random_id
from agentic_trading.llm.errors import RecordConflictError
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import Record, Records
from agentic_trading.server import errors
from agentic_trading.server.api_keys import ApiKey
from agentic_trading.server.calls import agent_type
from agentic_trading.server.causes import Causes
from agentic_trading.server.errors import RequestError, reused_key
from agentic_trading.server.fields import FieldError, read_object

NAMESPACES: Final = ("agent", "venue")
"""The namespaces of events that an agent may record. The gateway reads all others itself."""

RECORDED_BY: Final = "recorded_by"
"""The field of a body with the name of the API key."""

_KIND = re.compile(rf"(?:{'|'.join(NAMESPACES)})\.[a-z][a-z0-9_]{{0,62}}")
_FIELDS: Final = ("kind", "caused_by", "require_sound", "body")
_MOST_ID: Final = 256
_DEEPEST: Final = 64
_MOST_DIGITS: Final = 15


@dataclass(frozen=True, slots=True)
class EventRequest:
    """An event that an agent records.

    Attributes:
        kind: Its kind, in one of `NAMESPACES`.
        caused_by: The id of its cause: that of an answer, an interaction or an event.
        require_sound: Whether it is refused if a call of the trace has failed.
        body: Its body. Numbers that a reader could round are texts.

    """

    kind: str
    caused_by: str
    require_sound: bool
    body: Mapping[str, Any]


def read_event_request(raw: bytes) -> EventRequest:
    """Read the body of a request.

    Raises:
        FieldError: If it is not JSON, or a field is wrong.

    """
    fields = read_object(raw, parse_int=_whole, parse_float=Decimal)
    if unknown := sorted(fields.keys() - set(_FIELDS)):
        name = unknown[0]
        raise FieldError(name, f"{name!r:.200} is not a field of an event. Allowed: {', '.join(_FIELDS)}")
    kind, cause, sound, body = (
        fields.get("kind"),
        fields.get("caused_by"),
        fields.get("require_sound", False),
        fields.get("body", {}),
    )
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        allowed = " or ".join(f"{name}.NAME" for name in NAMESPACES)
        raise FieldError(
            "kind",
            f"kind is {kind!r:.200}. Allowed: {allowed}, in small letters, digits and _, such as venue.order",
        )
    if not isinstance(cause, str) or not 0 < len(cause) <= _MOST_ID:
        raise FieldError(
            "caused_by", f"caused_by is {cause!r:.200}. Allowed: the id of an answer or an event"
        )
    if not isinstance(sound, bool):
        raise FieldError("require_sound", f"require_sound is {sound!r:.200}. Allowed: true or false")
    if not isinstance(body, dict) or RECORDED_BY in body:
        found = f"with {RECORDED_BY}, which the server sets" if isinstance(body, dict) else f"{body!r:.200}"
        raise FieldError("body", f"body is {found}. Allowed: an object of your own fields")
    if _depth(body) > _DEEPEST:
        raise FieldError("body", f"body is nested more than {_DEEPEST} levels deep")
    return EventRequest(kind, cause, sound, body)


def _whole(digits: str) -> int | str:
    # A text, because readers round numbers that a float does not hold.
    return int(digits) if len(digits) <= _MOST_DIGITS else digits


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return depth


class _RecordedBody(BaseModel, frozen=True):
    """The field of the server in the body of an event. A producer on the bus may leave it out."""

    recorded_by: Any = None


@dataclass(frozen=True, slots=True)
class TraceState:
    """The state of a trace.

    Attributes:
        calls: Its calls.
        failed: Those without a usable answer in their last attempt.
        cost_nusd: Their cost in nano-dollars.

    """

    calls: int
    failed: int
    cost_nusd: int

    @property
    def sound(self) -> bool:
        """Whether there is a call, and none has failed."""
        return self.calls > 0 and not self.failed


@dataclass(frozen=True, slots=True)
class KeptEvents:
    """The log as API keys see it.

    Attributes:
        records: The queries of the log.
        keep: Writes an event to it. It returns when the event is durable.
        causes: The answers of this process.
        clock: The clock of events.

    """

    records: Records
    keep: Callable[[Event], Awaitable[None]]
    causes: Causes
    clock: Clock

    async def state(self, key: ApiKey, trace_id: str) -> TraceState:
        """Return the state of a trace. Raises `RequestError` if the key's tenant has no record of it."""
        records = await self.records.trace(trace_id, tenant=key.tenant)
        if not records:
            raise RequestError(errors.UNKNOWN_TRACE, f"no trace has the id {trace_id!r:.200}")
        calls = [node for node in TraceTree(records).nodes if isinstance(node, CallNode)]
        failed = sum(not call.attempts[-1].result.success for call in calls)
        return TraceState(len(calls), failed, sum(call.cost_nusd for call in calls))

    async def record(self, key: ApiKey, asked: EventRequest, name: str = "") -> Event:
        """Record an event of an agent, and return it when it is durable.

        Args:
            key: The API key of the request.
            asked: The event.
            name: The `Idempotency-Key` of the request. An event with one is recorded once, also after a restart.

        Raises:
            RequestError: If its cause is not a record of the key, its trace is not sound although it must be, or the
                `Idempotency-Key` was used for another event.

        """
        if not name:
            event = await self._made(key, asked, random_id())
            await self.keep(event)
            return event
        event_id = derived_id("http-event", key.tenant, key.name, name)
        first = await self._first(key, event_id)
        if first is None:
            event = await self._made(key, asked, event_id)
            try:
                await self.keep(event)
            except RecordConflictError:
                # An equal request came in between, and has another time.
                first = await self._first(key, event_id)
                if first is None:
                    raise
            else:
                return event
        try:
            # The log compares the two after secrets are removed, and keeps an equal one once.
            await self.keep(await self._repeated(key, asked, first))
        except RecordConflictError as e:
            why = "the Idempotency-Key was used for another request. Allowed: a new key, or the same event"
            raise reused_key(why) from e
        return first

    async def _first(self, key: ApiKey, event_id: str) -> Event | None:
        found = await self.records.find(event_id, tenant=key.tenant)
        return found if isinstance(found, Event) else None

    async def _made(self, key: ApiKey, asked: EventRequest, event_id: str) -> Event:
        """Return a new event. Raises `RequestError` if its cause or its trace refuses it."""
        cause = await self._cause(key, asked.caused_by)
        if asked.require_sound:
            state = await self.state(key, cause.trace_id)
            if not state.sound:
                why = f"{state.failed} of {state.calls} calls of the trace {cause.trace_id} have failed"
                raise RequestError(errors.UNSOUND_TRACE, f"{why}. The event was not recorded")
        return _event(key, asked, event_id, cause.trace_id, _id_of(cause), self.clock.now())

    async def _repeated(self, key: ApiKey, asked: EventRequest, first: Event) -> Event:
        """Return the event of a request, with the id and the time of the first one."""
        try:
            cause_id = _id_of(await self._cause(key, asked.caused_by))
        except RequestError:
            # The ids of answers are forgotten at a restart. The event is on record all the same.
            cause_id = first.causation_id
        return _event(key, asked, first.id, first.trace_id, cause_id, first.time)

    async def _cause(self, key: ApiKey, named: str) -> Record:
        """Return the record of a cause. Raises `RequestError` unless it is one of the key's own."""
        record_id = self.causes.named(key.owner, named) or named
        record = await self.records.find(record_id, tenant=key.tenant)
        if record is None or not _is_of(key, record):
            # One message for all, so that nobody learns the ids of others.
            why = f"caused_by names {named!r:.200}, which this key has not recorded"
            raise RequestError(
                errors.UNKNOWN_CAUSE,
                f"{why}. Allowed: an id of x-agentic-interaction-id, of an event, or of an answer since the start of "
                "the server",
                param="caused_by",
            )
        return record


def _id_of(record: Record) -> str:
    return record.interaction_id if isinstance(record, LLMInteraction) else record.id


def _event(
    key: ApiKey, asked: EventRequest, event_id: str, trace_id: str, cause_id: str, time: datetime
) -> Event:
    return Event(
        kind=asked.kind,
        id=event_id,
        trace_id=trace_id,
        causation_id=cause_id,
        tenant_id=key.tenant,
        time=time,
        body={**asked.body, RECORDED_BY: key.name},
    )


def _is_of(key: ApiKey, record: Record) -> bool:
    if isinstance(record, Event):
        return (
            record.kind.partition(".")[0] in NAMESPACES
            and _RecordedBody.model_validate(record.body).recorded_by == key.name
        )
    return record.envelope.agent_type == agent_type(key)


def state_page(trace_id: str, state: TraceState) -> dict[str, Any]:
    """Return the reply about a trace."""
    return {
        "id": trace_id,
        "calls": state.calls,
        "failed": state.failed,
        "cost_nusd": state.cost_nusd,
        "sound": state.sound,
    }
