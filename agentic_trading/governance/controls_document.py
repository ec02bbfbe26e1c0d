"""The controls of operators: limits and halts in one versioned document per tenant, and its store."""

import asyncio
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Literal, Protocol, Self, assert_never

from pydantic import BaseModel, Field, model_validator

from agentic_trading.cancellation import end_wait
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window, agent_of
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.event import PLATFORM, Event, EventBody
from agentic_trading.llm.fields import Count, Moment, Open, Text
from agentic_trading.llm.limits import UnlessNone

KEPT_ACTIONS = 200
"""The number of last actions kept in a document. The log has all of them."""

RUNNING = "running"
HALTED = "halted"
"""The states before and after a halt or resume, as recorded."""

CommandKind = Literal["set_limit", "remove_limit", "halt", "resume"]
LIMIT_COMMANDS = ("set_limit", "remove_limit")
HALT_COMMANDS = ("halt", "resume")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Ceilings = tuple[int | None, int | None, int | None]
Name = Annotated[Text, Field(min_length=1, max_length=500)]
Reason = Annotated[Text, Field(max_length=2000)]


class HaltScope(StrEnum):
    """The scope of a halt: a whole tenant, or the calls of an agent, a workflow or a model.

    A halt of `entries` stops no call, but the orders of a trading session that open a position. Its id is the
    session. The session sets it, and operators remove it.
    """

    TENANT = "tenant"
    AGENT = "agent"
    WORKFLOW = "workflow"
    MODEL = "model"
    ENTRIES = "entries"


class Halt(BaseModel, frozen=True, extra="forbid"):
    """A halt of a scope from `at` until it is resumed.

    `id` is its name, or `*` for every one of its kind. A model is `model`, `provider/model`, or `provider/*`.
    With `spares_in_flight`, sent calls complete, so that their bills become known.
    """

    scope: HaltScope
    id: Name
    by: Name
    why: Reason = ""
    at: Moment
    spares_in_flight: bool = Field(default=False, exclude_if=operator.not_)

    def concerns(self, envelope: LLMEnvelope, *, in_flight: bool = False) -> bool:
        """Whether it stops this envelope, or, with `in_flight`, a call of it that was sent."""
        # `*` is every one of the calls, and there is none of these.
        is_any = self.id == ANY and self.scope is not HaltScope.ENTRIES
        is_named = is_any or self.id in _names(self.scope, envelope)
        return is_named and not (in_flight and self.spares_in_flight)

    @property
    def reason_and_effect(self) -> str:
        """The reason after a colon, with the effect and the end of a halt of entries. Empty without a reason."""
        why = f": {self.why}" if self.why else ""
        if self.scope is not HaltScope.ENTRIES:
            return why
        return f"{why}. Calls and exits are not stopped. To allow entries: agentic-trading resume --entries {self.id}"


class AppliedCommand(EventBody, frozen=True, extra="allow"):
    """An executed command, which created this `version` of the document.

    `before` and `after` are readable texts. For a limit, `window` and the ceilings in nano-dollars, tokens
    and calls are set. A ceiling of None means that there is no limit. `serial` is the document's serial after
    the command, and orders commands across copies of a store. Commands that were derived from a limit or halt
    have no serial.
    """

    KIND = "operator.commanded"

    version: Count
    kind: Open[CommandKind]
    subject: str
    before: str
    after: str
    by: Name
    why: Reason = ""
    at: Moment
    scope: str = ""
    id: str = ""
    window: Open[Window] | None = None
    ceiling_before: Ceilings | None = None
    ceiling_after: Ceilings | None = None
    serial: UnlessNone = None
    spares_in_flight: bool = Field(default=False, exclude_if=operator.not_)


def subject_of(command: AppliedCommand) -> tuple[bool, str]:
    """Return the limit or halt that a command is about.

    A limit and a halt may have the same text.
    """
    return command.kind in LIMIT_COMMANDS, command.subject


def kept_actions(actions: Sequence[AppliedCommand]) -> tuple[AppliedCommand, ...]:
    """Return the last actions, and of older ones the last for each limit and halt."""
    # Removals and resumes are kept too, because only they lift a restriction that an older copy may contain.
    older, recent = actions[:-KEPT_ACTIONS], actions[-KEPT_ACTIONS:]
    last = {subject_of(action): action for action in actions}
    return (*(action for action in older if last[subject_of(action)] is action), *recent)


def milliseconds(at: datetime) -> int:
    """Return a time in whole milliseconds since 1970. Negative before."""
    return (at - _EPOCH) // timedelta(milliseconds=1)


class TenantControls(BaseModel, frozen=True, extra="forbid"):
    """The limits and halts of one tenant.

    Version 0 means that the tenant never had a command. Each command creates the next version, with a larger
    `serial`. Versions start again if a store is lost. Serials do not: they are never smaller than the store's
    time of their command in milliseconds since 1970. Unknown fields are rejected, so that a restriction is
    never ignored.
    """

    version: Count = 0
    limits: tuple[Limit, ...] = ()
    halts: tuple[Halt, ...] = ()
    actions: tuple[AppliedCommand, ...] = ()
    serial: Count = 0

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        _refuse_twice("limits", ((limit.scope, limit.id, limit.window) for limit in self.limits))
        _refuse_twice("halts", ((halt.scope, halt.id) for halt in self.halts))
        return self

    @property
    def speaks_of_limits(self) -> bool:
        """Whether a limit was ever set.

        If so, an empty list of limits means that they were removed.
        """
        return bool(self.limits) or any(action.kind.endswith("limit") for action in self.actions)

    def limit(self, scope: ScopeKind, id_: str, window: Window) -> Limit | None:
        """Return the limit on exactly this scope, id and window, or None."""
        wanted = (scope, id_, window)
        return next((one for one in self.limits if (one.scope, one.id, one.window) == wanted), None)

    def halt(self, scope: HaltScope, id_: str) -> Halt | None:
        """Return the halt of exactly this scope and id, or None."""
        return next((one for one in self.halts if (one.scope, one.id) == (scope, id_)), None)

    def halt_for(self, envelope: LLMEnvelope, *, in_flight: bool = False) -> Halt | None:
        """Return the oldest halt that stops `envelope`, or None."""
        return next((halt for halt in self.halts if halt.concerns(envelope, in_flight=in_flight)), None)


class ControlStore(Protocol):
    """Stores the controls of operators for all processes that apply them.

    A write by one process is visible to all later reads of others.

    Raises:
        ControlsUnreadableError: By `read` and `replace`, if the content is not a `TenantControls`. It is not
            changed.
        ControlsUnavailableError: If the store cannot be reached. A replacement may or may not have been made.

    """

    async def read(self, tenant: str) -> TenantControls:
        """Return the last written controls of `tenant`, or version 0 if there are none."""
        ...

    async def replace(self, tenant: str, controls: TenantControls) -> bool:
        """Write `controls` if the stored version is the one before.

        Return whether it was written. Of several concurrent replacements of the same version, exactly one
        succeeds.
        """
        ...

    async def now(self) -> datetime:
        """Return the store's time, the same for all its writers."""
        ...

    async def aclose(self) -> None:
        """Close the connections that were opened. Repeating is harmless."""
        ...


def event_of(tenant: str, action: AppliedCommand) -> Event:
    """Return the record of an action. It is the same in every process."""
    return action.as_event(
        event_id=derived_id("operator.action", tenant, action.version, action.at.isoformat()),
        trace_id=f"operator-{tenant}",
        tenant_id=tenant,
        time=action.at,
    )


def _names(scope: HaltScope, envelope: LLMEnvelope) -> tuple[str, ...]:
    match scope:
        case HaltScope.TENANT:
            return (envelope.tenant_id,)
        case HaltScope.AGENT:
            return (agent_of(envelope),)
        case HaltScope.WORKFLOW:
            return (str(envelope.workflow),)
        case HaltScope.MODEL:
            return (envelope.model, f"{envelope.provider}/{envelope.model}", f"{envelope.provider}/{ANY}")
        case HaltScope.ENTRIES:
            return ()
        case _:
            assert_never(scope)


def _refuse_twice(what: str, subjects: Iterable[tuple[str, ...]]) -> None:
    twice = [" ".join(subject) for subject, times in Counter(subjects).items() if times > 1]
    if twice:
        raise ValueError(f"{what} contains {', '.join(twice)} twice. Allowed: once")


@dataclass(slots=True)
class HaltRegistry:
    """The last known halts, and the calls that wait or are in flight.

    A new halt ends the calls that it concerns. If the controls of a tenant are unknown, it is closed: all of
    it counts as halted. A `raised` halt applies at once, until it is found in the controls.
    """

    _by_tenant: dict[str, TenantControls] = field(default_factory=dict)
    _closed: dict[str, str] = field(default_factory=dict)
    _raised: dict[str, list[Halt]] = field(default_factory=dict)
    _reachable: dict[asyncio.Timeout, tuple[LLMEnvelope, bool]] = field(default_factory=dict)

    def knows(self, tenant: str) -> bool:
        """Whether the controls of a tenant were ever read."""
        return tenant in self._by_tenant

    def update(self, tenant: str, controls: TenantControls) -> None:
        """Set the controls of a tenant, or of the platform for all tenants."""
        self._closed.pop(tenant, None)
        self._by_tenant[tenant] = controls
        self._end_what_is_halted()

    def raise_halt(self, tenant: str, halt: Halt) -> bool:
        """Halt at once, before the halt is stored. Return whether the halt is new."""
        raised = self._raised.setdefault(tenant, [])
        if any((one.scope, one.id) == (halt.scope, halt.id) for one in raised):
            return False
        raised.append(halt)
        self._end_what_is_halted()
        return True

    def raised(self, tenant: str) -> tuple[Halt, ...]:
        """Return the raised halts that were not found in the controls yet."""
        return tuple(self._raised.get(tenant, ()))

    def stored(self, tenant: str, halt: Halt, controls: TenantControls) -> None:
        """Set controls that contain a raised halt."""
        self.update(tenant, controls)
        self._raised[tenant] = [one for one in self._raised.get(tenant, ()) if one != halt]

    def close(self, tenant: str, why: str) -> None:
        """Stop all calls of a tenant, or of the whole platform by its name, until `open` or `update`."""
        self._closed[tenant] = why
        self._end_what_is_halted()

    def open(self, tenant: str) -> None:
        """Apply the last known controls again. Harmless if the tenant is not closed."""
        self._closed.pop(tenant, None)

    def counts(self, tenant: str) -> Mapping[HaltScope, int]:
        """Return the number of halts of a tenant, or of the platform, by scope."""
        controls = self._by_tenant.get(tenant)
        halts = (*(controls.halts if controls is not None else ()), *self._raised.get(tenant, ()))
        return {scope: sum(halt.scope is scope for halt in halts) for scope in HaltScope}

    def problem(self, envelope: LLMEnvelope, *, in_flight: bool = False) -> FailureReason | None:
        """Return why this envelope is halted, or None.

        With `in_flight`, for a call of it that was sent.
        """
        why = self._why(envelope, in_flight=in_flight)
        if why is None:
            return None
        return FailureReason(category=FailureKind.HALTED, description=why, recoverable=True)

    @contextmanager
    def reached(self, envelope: LLMEnvelope, limit: asyncio.Timeout) -> Iterator[None]:
        """Within the block, end `limit` as soon as the envelope is halted, also if it already is."""
        self.watch(envelope, limit)
        try:
            yield
        finally:
            self.forget(limit)

    def watch(self, envelope: LLMEnvelope, limit: asyncio.Timeout, *, in_flight: bool = False) -> None:
        """Start watching, as `reached` does. Some halts spare a call `in_flight`."""
        self._reachable[limit] = envelope, in_flight
        if self._why(envelope, in_flight=in_flight) is not None:
            end_wait(limit)

    def forget(self, limit: asyncio.Timeout) -> None:
        """Stop watching `limit`."""
        del self._reachable[limit]

    def _end_what_is_halted(self) -> None:
        for reach, (envelope, in_flight) in list(self._reachable.items()):
            if self._why(envelope, in_flight=in_flight) is not None:
                end_wait(reach)

    def _why(self, envelope: LLMEnvelope, *, in_flight: bool) -> str | None:
        for tenant in (PLATFORM, envelope.tenant_id):
            # A tenant without known controls must not run, because it may be halted.
            if tenant in self._closed:
                return f"it is not known what is halted for tenant {tenant}: {self._closed[tenant]}"
            controls = self._by_tenant.get(tenant)
            halt = controls.halt_for(envelope, in_flight=in_flight) if controls is not None else None
            for raised in self._raised.get(tenant, ()):
                if halt is None and raised.concerns(envelope, in_flight=in_flight):
                    halt = raised
            if halt is not None:
                return _halt_text(halt)
        return None


def _halt_text(halt: Halt) -> str:
    why = f": {halt.why}" if halt.why else ""
    return f"{halt.scope} {halt.id} is halted by {halt.by} since {halt.at.isoformat()}{why}"
