"""The controls of operators, limits and halts: one versioned document per tenant, and the port to its store."""

import asyncio
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
"""So many of the last actions stay in a document; the log has all of them."""

RUNNING = "running"
HALTED = "halted"
"""How the record of a halt or a resume spells what was and is."""

CommandKind = Literal["set_limit", "remove_limit", "halt", "resume"]
LIMIT_COMMANDS = ("set_limit", "remove_limit")
HALT_COMMANDS = ("halt", "resume")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Ceilings = tuple[int | None, int | None, int | None]
Name = Annotated[Text, Field(min_length=1, max_length=500)]
Reason = Annotated[Text, Field(max_length=2000)]


class HaltScope(StrEnum):
    """What a halt stops: a whole tenant, or those of its calls that an agent, a workflow or a model is in."""

    TENANT = "tenant"
    AGENT = "agent"
    WORKFLOW = "workflow"
    MODEL = "model"


class Halt(BaseModel, frozen=True, extra="forbid"):
    """Nothing of this scope may run, from `at` until it is resumed.

    `id` names it, `*` is every one of its kind. A model is named `model`, `provider/model`, or `provider/*` for all of
    a provider's. With `spares_in_flight` calls that were sent end as they are, because their bills are to be known.
    """

    scope: HaltScope
    id: Name
    by: Name
    why: Reason = ""
    at: Moment
    spares_in_flight: bool = Field(default=False, exclude_if=operator.not_)

    def concerns(self, envelope: LLMEnvelope, *, in_flight: bool = False) -> bool:
        """Whether this envelope must not run, or a call of it not go on that is `in_flight`."""
        is_named = self.id == ANY or self.id in _names(self.scope, envelope)
        return is_named and not (in_flight and self.spares_in_flight)


class AppliedCommand(EventBody, frozen=True, extra="allow"):
    """A command that was executed, and made this `version` of the document; `before` and `after` are texts to be read.

    `scope` and `id` are what it was about. Where that was a limit, `window` is there too, and its ceilings in
    nano-dollars, tokens and calls; None is no limit. `serial` is that of the document that it made: it orders commands
    across copies of a store. A command that was derived from a limit or halt has none.
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
    """Return the limit or halt that a command is about: an agent's halt and its limit may be spelled alike."""
    return command.kind in LIMIT_COMMANDS, command.subject


def kept_actions(actions: Sequence[AppliedCommand]) -> tuple[AppliedCommand, ...]:
    """Return the last actions, and of older ones the last about each limit and halt.

    It says who has set or removed it: a removal and a resume stay known, because nothing else lifts a restriction.
    """
    older, recent = actions[:-KEPT_ACTIONS], actions[-KEPT_ACTIONS:]
    last = {subject_of(action): action for action in actions}
    return (*(action for action in older if last[subject_of(action)] is action), *recent)


def milliseconds(at: datetime) -> int:
    """Return a moment in whole milliseconds since 1970; one before that is below zero."""
    return (at - _EPOCH) // timedelta(milliseconds=1)


class TenantControls(BaseModel, frozen=True, extra="forbid"):
    """The limits and halts of one tenant; version 0 is that of a tenant without any command.

    Each command makes the next version, with a larger `serial`. Versions start over with a store that was lost. Serials
    go on: none is smaller than the store's time of its command in milliseconds since 1970. A field that is not known here is
    refused: a restriction is never ignored.
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
        """Whether a limit was ever set here: then no limit means a removed one."""
        return bool(self.limits) or any(action.kind.endswith("limit") for action in self.actions)

    def limit(self, scope: ScopeKind, id_: str, window: Window) -> Limit | None:
        """Return the limit on exactly this scope, id and window, or None."""
        wanted = (scope, id_, window)
        return next((one for one in self.limits if (one.scope, one.id, one.window) == wanted), None)

    def halt(self, scope: HaltScope, id_: str) -> Halt | None:
        """Return the halt of exactly this scope and id, or None."""
        return next((one for one in self.halts if (one.scope, one.id) == (scope, id_)), None)

    def halt_for(self, envelope: LLMEnvelope, *, in_flight: bool = False) -> Halt | None:
        """Return the oldest halt that keeps `envelope` from running, or None."""
        return next((halt for halt in self.halts if halt.concerns(envelope, in_flight=in_flight)), None)


class ControlStore(Protocol):
    """Where the controls of operators are stored, for every process that applies them.

    What one process has written, every other one reads from then on. Both methods raise `ControlsUnreadableError` for
    contents that are not `TenantControls`, which they leave as they are, and `ControlsUnavailableError` where the store
    cannot be reached: whether a replacement was made is then not known.
    """

    async def read(self, tenant: str) -> TenantControls:
        """Return what was written last for `tenant`; version 0 if nothing ever was."""
        ...

    async def replace(self, tenant: str, controls: TenantControls) -> bool:
        """Write `controls` if the version before it stands there now, and say whether it was written.

        Of several replacements of the same version at once, one succeeds. What was written outlives the process, if the
        store does.
        """
        ...

    async def now(self) -> datetime:
        """Return the time by the clock of the store, the same for all who write to it."""
        ...

    async def aclose(self) -> None:
        """Close what was opened; harmless twice."""
        ...


def event_of(tenant: str, action: AppliedCommand) -> Event:
    """Return an action as a record; every process that puts it on record makes the same one."""
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
        case _:
            assert_never(scope)


def _refuse_twice(what: str, subjects: Iterable[tuple[str, ...]]) -> None:
    twice = [" ".join(subject) for subject, times in Counter(subjects).items() if times > 1]
    if twice:
        raise ValueError(f"{what} holds {', '.join(twice)} twice; allowed is once")


@dataclass(slots=True)
class HaltRegistry:
    """Halts as they were last read, and the calls waiting or in flight; those that a new halt concerns are ended.

    Where the controls of a tenant are not known, it is closed: as if all of it was halted. A `raised` halt holds at
    once, and until it is found in the controls.
    """

    _by_tenant: dict[str, TenantControls] = field(default_factory=dict)
    _closed: dict[str, str] = field(default_factory=dict)
    _raised: dict[str, list[Halt]] = field(default_factory=dict)
    _reachable: dict[asyncio.Timeout, tuple[LLMEnvelope, bool]] = field(default_factory=dict)

    def knows(self, tenant: str) -> bool:
        """Whether the controls of a tenant were ever read."""
        return tenant in self._by_tenant

    def update(self, tenant: str, controls: TenantControls) -> None:
        """Take note of the controls of a tenant, or of all by the platform's own name."""
        self._closed.pop(tenant, None)
        self._by_tenant[tenant] = controls
        self._end_what_is_halted()

    def raise_halt(self, tenant: str, halt: Halt) -> bool:
        """Halt at once, before the control store knows of it; returns whether that is new."""
        raised = self._raised.setdefault(tenant, [])
        if any((one.scope, one.id) == (halt.scope, halt.id) for one in raised):
            return False
        raised.append(halt)
        self._end_what_is_halted()
        return True

    def raised(self, tenant: str) -> tuple[Halt, ...]:
        """Return the halts that no controls are known to hold."""
        return tuple(self._raised.get(tenant, ()))

    def stored(self, tenant: str, halt: Halt, controls: TenantControls) -> None:
        """Take note that these controls hold a raised halt."""
        self.update(tenant, controls)
        self._raised[tenant] = [one for one in self._raised.get(tenant, ()) if one != halt]

    def close(self, tenant: str, why: str) -> None:
        """Let nothing of a tenant run, or nothing at all by the platform's name, until `open` or `update`."""
        self._closed[tenant] = why
        self._end_what_is_halted()

    def open(self, tenant: str) -> None:
        """Let what was noted last hold again; harmless where nothing is closed."""
        self._closed.pop(tenant, None)

    def problem(self, envelope: LLMEnvelope, *, in_flight: bool = False) -> FailureReason | None:
        """Return why nothing of this envelope may run, or a call of it not go on that is `in_flight`; or None."""
        why = self._why(envelope, in_flight=in_flight)
        if why is None:
            return None
        return FailureReason(category=FailureKind.HALTED, description=why, recoverable=True)

    @contextmanager
    def reached(self, envelope: LLMEnvelope, limit: asyncio.Timeout) -> Iterator[None]:
        """Have `limit` run out as soon as the envelope is halted, at once if it is, for as long as the block lasts."""
        self.watch(envelope, limit)
        try:
            yield
        finally:
            self.forget(limit)

    def watch(self, envelope: LLMEnvelope, limit: asyncio.Timeout, *, in_flight: bool = False) -> None:
        """Do so until `forget`; a call `in_flight` is spared by some halts."""
        self._reachable[limit] = envelope, in_flight
        if self._why(envelope, in_flight=in_flight) is not None:
            end_wait(limit)

    def forget(self, limit: asyncio.Timeout) -> None:
        """Leave `limit` alone from now on."""
        del self._reachable[limit]

    def _end_what_is_halted(self) -> None:
        for reach, (envelope, in_flight) in list(self._reachable.items()):
            if self._why(envelope, in_flight=in_flight) is not None:
                end_wait(reach)

    def _why(self, envelope: LLMEnvelope, *, in_flight: bool) -> str | None:
        for tenant in (PLATFORM, envelope.tenant_id):
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
