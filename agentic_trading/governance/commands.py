"""The orders that an operator can give, and what each makes of the document it is given to."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeVar, assert_never

from pydantic import ValidationError

from agentic_trading.canonical import utc_text
from agentic_trading.governance.controls_document import (
    KEPT_ACTIONS,
    PLATFORM,
    AppliedCommand,
    ControlStore,
    Halt,
    HaltScope,
    TenantControls,
    milliseconds,
)
from agentic_trading.governance.errors import CommandError
from agentic_trading.governance.limits import (
    ANY,
    NO_LIMIT,
    Limit,
    ScopeKind,
    Window,
    ceiling_text,
    limit_text,
    limited_text,
)
from agentic_trading.llm.envelope import EnvelopeWorkflow

T = TypeVar("T")

_RUNNING = "running"
_HALTED = "halted"


@dataclass(frozen=True, slots=True)
class SetLimit:
    """Count against this limit, in place of the whole one of the same scope, id and window if there is one."""

    limit: Limit

    @property
    def subject(self) -> str:
        """What the order is about."""
        return limited_text(self.limit.scope, self.limit.id, self.limit.window)


@dataclass(frozen=True, slots=True)
class RemoveLimit:
    """Take the limit on exactly this scope, id and window away."""

    scope: ScopeKind
    id: str
    window: Window

    @property
    def subject(self) -> str:
        """What the order is about."""
        return limited_text(self.scope, self.id, self.window)


@dataclass(frozen=True, slots=True)
class AddHalt:
    """Let nothing of this scope run from now on; what is in flight is ended and settled."""

    scope: HaltScope
    id: str

    @property
    def subject(self) -> str:
        """What the order is about."""
        return f"{self.scope} {self.id}"


@dataclass(frozen=True, slots=True)
class RemoveHalt:
    """Take back the halt of exactly this scope and id; others that stand go on to hold."""

    scope: HaltScope
    id: str

    @property
    def subject(self) -> str:
        """What the order is about."""
        return f"{self.scope} {self.id}"


OperatorCommand = SetLimit | RemoveLimit | AddHalt | RemoveHalt


async def execute_command(
    board: ControlStore, tenant: str, wanted: OperatorCommand, *, by: str, why: str, at: datetime
) -> TenantControls:
    """Carry an order out, and return what stands on the board then.

    Tries until no other operator comes in between; put a time limit around it. Raises `OrderError` for an order that
    changes nothing or cannot be given to this tenant, and what the board raises.
    """
    validate_command(tenant, wanted)
    while True:
        changed = apply_command(await board.read(tenant), wanted, by=by, why=why, at=at)
        if await board.replace(tenant, changed):
            return changed


def apply_command(
    controls: TenantControls, wanted: OperatorCommand, *, by: str, why: str, at: datetime
) -> TenantControls:
    """Return the next version of a document: with the order carried out, and the action on its list.

    Raises `OrderError` for an order that changes nothing, and says what is there; and for a text that is too long.
    """
    said = _Said(controls.version + 1, by, why, at)
    try:
        match wanted:
            case SetLimit():
                return _with_limit(controls, wanted, said)
            case RemoveLimit():
                return _without_limit(controls, wanted, said)
            case AddHalt():
                return _halted(controls, wanted, said)
            case RemoveHalt():
                return _resumed(controls, wanted, said)
            case _:
                assert_never(wanted)
    except ValidationError as e:
        first = e.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "order"
        raise CommandError(
            wanted.subject, f"{place}: {first['msg']}", "names, reasons and times that fit"
        ) from e


def validate_command(tenant: str, wanted: OperatorCommand) -> None:
    """Raise `OrderError` for an order that would hold for nothing at this tenant."""
    if not tenant:
        raise CommandError(
            wanted.subject, "it is for no tenant", f"the id of one, or {PLATFORM!r} for the platform"
        )
    match wanted:
        case SetLimit(limit):
            if tenant == PLATFORM:
                raise CommandError(
                    wanted.subject,
                    "a limit is counted within one tenant, and the platform is none",
                    "the id of a tenant; only halts hold for all of them",
                )
            _check_id(tenant, limit.scope, limit.id, wanted.subject)
        case AddHalt(scope, id_):
            _check_id(tenant, scope, id_, wanted.subject)
        case RemoveLimit() | RemoveHalt():
            pass  # what is there can always be taken away
        case _:
            assert_never(wanted)


def _check_id(tenant: str, scope: ScopeKind | HaltScope, id_: str, subject: str) -> None:
    if not id_:
        raise CommandError(subject, "it has no id", f"an id, or {ANY!r} for every {scope}")
    known: tuple[str, ...] = ()
    if scope == ScopeKind.WORKFLOW:
        known = (*EnvelopeWorkflow, ANY)
    if scope == ScopeKind.TENANT and tenant != PLATFORM:
        known = (tenant, ANY)
    if known and id_ not in known:
        raise CommandError(subject, f"{tenant} has no such {scope}", ", ".join(known))


@dataclass(frozen=True, slots=True)
class _Said:
    """Who orders it as which version, why and when."""

    version: int
    by: str
    why: str
    at: datetime

    def action(
        self,
        kind: Literal["set_limit", "remove_limit", "halt", "resume"],
        wanted: OperatorCommand,
        before: str,
        after: str,
    ) -> AppliedCommand:
        return AppliedCommand(
            version=self.version, kind=kind, subject=wanted.subject, before=before, after=after,
            by=self.by, why=self.why, at=self.at,
        )  # fmt: skip


def _with_limit(controls: TenantControls, wanted: SetLimit, said: _Said) -> TenantControls:
    limit = wanted.limit
    before = controls.limit(limit.scope, limit.id, limit.window)
    if before == limit:
        raise CommandError(wanted.subject, f"it is {ceiling_text(limit.ceiling)} already", "another ceiling")
    action = said.action("set_limit", wanted, _ceiling(before), ceiling_text(limit.ceiling))
    return _next(controls, action, limits=(*_without(controls.limits, before), limit))


def _without_limit(controls: TenantControls, wanted: RemoveLimit, said: _Said) -> TenantControls:
    before = controls.limit(wanted.scope, wanted.id, wanted.window)
    if before is None:
        raise CommandError(wanted.subject, "no such limit is set", _listed(map(limit_text, controls.limits)))
    action = said.action("remove_limit", wanted, _ceiling(before), NO_LIMIT)
    return _next(controls, action, limits=_without(controls.limits, before))


def _halted(controls: TenantControls, wanted: AddHalt, said: _Said) -> TenantControls:
    there = controls.halt(wanted.scope, wanted.id)
    if there is not None:
        raise CommandError(wanted.subject, f"is halted already, {_told(there)}", "to resume it")
    halt = Halt(scope=wanted.scope, id=wanted.id, by=said.by, why=said.why, at=said.at)
    return _next(controls, said.action("halt", wanted, _RUNNING, _HALTED), halts=(*controls.halts, halt))


def _resumed(controls: TenantControls, wanted: RemoveHalt, said: _Said) -> TenantControls:
    there = controls.halt(wanted.scope, wanted.id)
    if there is None:
        halted = (f"{halt.scope} {halt.id}" for halt in controls.halts)
        raise CommandError(wanted.subject, "is not halted", _listed(halted))
    action = said.action("resume", wanted, f"{_HALTED} {_told(there)}", _RUNNING)
    return _next(controls, action, halts=_without(controls.halts, there))


def _next(
    controls: TenantControls,
    action: AppliedCommand,
    *,
    limits: tuple[Limit, ...] | None = None,
    halts: tuple[Halt, ...] | None = None,
) -> TenantControls:
    return TenantControls(
        version=action.version,
        limits=controls.limits if limits is None else limits,
        halts=controls.halts if halts is None else halts,
        actions=(*controls.actions, action)[-KEPT_ACTIONS:],
        serial=max(controls.serial + 1, milliseconds(action.at)),
    )


def _without(those: tuple[T, ...], one: T | None) -> tuple[T, ...]:
    return tuple(other for other in those if other != one)


def _ceiling(limit: Limit | None) -> str:
    return NO_LIMIT if limit is None else ceiling_text(limit.ceiling)


def _told(halt: Halt) -> str:
    why = f": {halt.why}" if halt.why else ""
    return f"by {halt.by} since {utc_text(halt.at)}{why}"


def _listed(texts: Iterable[str]) -> str:
    """Return what is there to be taken away."""
    return ", ".join(texts) or "nothing, as none is set"
