"""What operators order, limits and halts: one versioned document a tenant, and the board where it stands."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, Protocol, Self, assert_never

from pydantic import BaseModel, Field, model_validator

from agentic_trading.cancellation import end_wait
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window, agent_of
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.event import Event
from agentic_trading.llm.fields import Count, Moment, Text

PLATFORM = "*"
"""The tenant whose orders are the platform's own: its halts hold for every tenant. Nobody else is called so."""

KEPT_ACTIONS = 200
"""So many of the last actions stay in a document; the log has all of them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Name = Annotated[Text, Field(min_length=1, max_length=500)]
Reason = Annotated[Text, Field(max_length=2000)]


class HaltScope(StrEnum):
    """What a halt stops: a whole tenant, or those of its calls that an agent, a workflow or a model is in."""

    TENANT = "tenant"
    AGENT = "agent"
    WORKFLOW = "workflow"
    MODEL = "model"


class Halt(BaseModel, frozen=True, extra="forbid"):
    """Nothing of this scope may run, since `at`, until it is resumed.

    `id` names it, `*` is every one of its kind. A model is named `model`, `provider/model`, or `provider/*` for all of
    a provider's.
    """

    scope: HaltScope
    id: Name
    by: Name
    why: Reason = ""
    at: Moment

    def concerns(self, envelope: LLMEnvelope) -> bool:
        """Whether this envelope must not run."""
        return self.id == ANY or self.id in _names(self.scope, envelope)


class AppliedCommand(BaseModel, frozen=True, extra="allow"):
    """One order that was carried out, and made this `version` of the document; `before` and `after` are for people."""

    version: Count
    kind: Literal["set_limit", "remove_limit", "halt", "resume"]
    subject: str
    before: str
    after: str
    by: Name
    why: Reason = ""
    at: Moment


def milliseconds(at: datetime) -> int:
    """Return a moment in whole milliseconds since 1970; one before that is below zero."""
    return (at - _EPOCH) // timedelta(milliseconds=1)


def _serial_of(document: Mapping[str, Any]) -> int:
    """Return what a document counts as that was written without a serial: its latest order that is still known."""
    moments = [milliseconds(action.at) for action in document.get("actions", ())]
    return max([0, *moments]) + int(document.get("version", 0))


class TenantControls(BaseModel, frozen=True, extra="forbid"):
    """All that operators have ordered for one tenant; version 0 is that of a tenant for whom nobody has ordered anything.

    Each order makes the next version, with a larger `serial`. Versions begin anew with a board that was lost; serials go
    on, as none is smaller than its order's moment in milliseconds since 1970. A field that is not known here is
    refused: a restriction is never ignored.
    """

    version: Count = 0
    limits: tuple[Limit, ...] = ()
    halts: tuple[Halt, ...] = ()
    actions: tuple[AppliedCommand, ...] = ()
    serial: Count = Field(default_factory=_serial_of)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        _refuse_twice("limits", ((limit.scope, limit.id, limit.window) for limit in self.limits))
        _refuse_twice("halts", ((halt.scope, halt.id) for halt in self.halts))
        return self

    @property
    def speaks_of_limits(self) -> bool:
        """Whether anybody has ever set a limit here, so that none is one that was taken away."""
        return bool(self.limits) or any(action.kind.endswith("limit") for action in self.actions)

    def limit(self, scope: ScopeKind, id_: str, window: Window) -> Limit | None:
        """Return the limit on exactly this scope, id and window, or None."""
        wanted = (scope, id_, window)
        return next((one for one in self.limits if (one.scope, one.id, one.window) == wanted), None)

    def halt(self, scope: HaltScope, id_: str) -> Halt | None:
        """Return the halt of exactly this scope and id, or None."""
        return next((one for one in self.halts if (one.scope, one.id) == (scope, id_)), None)

    def halt_for(self, envelope: LLMEnvelope) -> Halt | None:
        """Return the oldest halt that keeps `envelope` from running, or None."""
        return next((halt for halt in self.halts if halt.concerns(envelope)), None)


class ControlStore(Protocol):
    """Where the orders of operators stand, for every process that has to follow them.

    What one process has written, every other one reads from then on. Both methods raise `ControlsUnreadableError` for
    contents that are not `Controls`, which they leave as they are, and `ControlsUnavailableError` where the board
    cannot be reached: whether a replacement was made is then not known.
    """

    async def read(self, tenant: str) -> TenantControls:
        """Return what was written last for `tenant`; version 0 if nothing ever was."""
        ...

    async def replace(self, tenant: str, controls: TenantControls) -> bool:
        """Write `controls` if the version before it stands there now, and say whether it was written.

        Of several who replace the same version at once, one does. What was written outlives the process, if the board
        does.
        """
        ...

    async def aclose(self) -> None:
        """Give back what was opened; harmless twice."""
        ...


def event_of(tenant: str, action: AppliedCommand) -> Event:
    """Return an action as a record; every process that puts it on record makes the same one."""
    return Event(
        kind="operator.action",
        id=derived_id("operator.action", tenant, action.version, action.at.isoformat()),
        trace_id=f"operator-{tenant}",
        tenant_id=tenant,
        time=action.at,
        body=action.model_dump(mode="json"),
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
    """Halts as they were last read, and who is waiting or under way; those that a new halt concerns are ended.

    Where it is not known what was ordered, a tenant is closed: as if all of it was halted.
    """

    _by_tenant: dict[str, TenantControls] = field(default_factory=dict)
    _closed: dict[str, str] = field(default_factory=dict)
    _reachable: dict[asyncio.Timeout, LLMEnvelope] = field(default_factory=dict)

    def knows(self, tenant: str) -> bool:
        """Whether it was ever told what is ordered for a tenant."""
        return tenant in self._by_tenant

    def update(self, tenant: str, controls: TenantControls) -> None:
        """Take note of what operators have ordered for a tenant, or for all by the platform's own name."""
        self._closed.pop(tenant, None)
        self._by_tenant[tenant] = controls
        self._end_what_is_halted()

    def close(self, tenant: str, why: str) -> None:
        """Let nothing of a tenant run, or nothing at all by the platform's name, until `open` or `update`."""
        self._closed[tenant] = why
        self._end_what_is_halted()

    def open(self, tenant: str) -> None:
        """Let what was noted last hold again; harmless where nothing is closed."""
        self._closed.pop(tenant, None)

    def problem(self, envelope: LLMEnvelope) -> FailureReason | None:
        """Return why nothing of this envelope may run, or None."""
        why = self._why(envelope)
        if why is None:
            return None
        return FailureReason(category=FailureKind.HALTED, description=why, recoverable=True)

    @contextmanager
    def reached(self, envelope: LLMEnvelope, limit: asyncio.Timeout) -> Iterator[None]:
        """Have `limit` run out as soon as the envelope is halted, at once if it is, for as long as the block lasts."""
        self._reachable[limit] = envelope
        if self._why(envelope) is not None:
            end_wait(limit)
        try:
            yield
        finally:
            del self._reachable[limit]

    def _end_what_is_halted(self) -> None:
        for reach, envelope in list(self._reachable.items()):
            if self._why(envelope) is not None:
                end_wait(reach)

    def _why(self, envelope: LLMEnvelope) -> str | None:
        for tenant in (PLATFORM, envelope.tenant_id):
            if tenant in self._closed:
                return f"it is not known what is halted for tenant {tenant}: {self._closed[tenant]}"
            controls = self._by_tenant.get(tenant)
            halt = controls.halt_for(envelope) if controls is not None else None
            if halt is not None:
                return _told(halt)
        return None


def _told(halt: Halt) -> str:
    why = f": {halt.why}" if halt.why else ""
    return f"{halt.scope} {halt.id} is halted by {halt.by} since {halt.at.isoformat()}{why}"
