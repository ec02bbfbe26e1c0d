"""The commands of an operator, and what each changes in the controls document of a tenant."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar, assert_never

from pydantic import ValidationError

from agentic_trading.canonical import utc_text
from agentic_trading.governance import controls_document
from agentic_trading.governance import limits as limit_types
from agentic_trading.governance.errors import CommandError
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.event import PLATFORM

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SetLimit:
    """Count against this limit, in place of the whole one of the same scope, id and window if there is one."""

    limit: limit_types.Limit

    @property
    def subject(self) -> str:
        """What the command is about."""
        return limit_types.limited_text(self.limit.scope, self.limit.id, self.limit.window)


@dataclass(frozen=True, slots=True)
class RemoveLimit:
    """Remove the limit on exactly this scope, id and window."""

    scope: limit_types.ScopeKind
    id: str
    window: limit_types.Window

    @property
    def subject(self) -> str:
        """What the command is about."""
        return limit_types.limited_text(self.scope, self.id, self.window)


@dataclass(frozen=True, slots=True)
class AddHalt:
    """Let nothing of this scope run from now on; calls in flight are cancelled and settled, or spared."""

    scope: controls_document.HaltScope
    id: str
    spares_in_flight: bool = False

    @property
    def subject(self) -> str:
        """What the command is about."""
        return f"{self.scope} {self.id}"


@dataclass(frozen=True, slots=True)
class RemoveHalt:
    """Remove the halt of exactly this scope and id; others still hold."""

    scope: controls_document.HaltScope
    id: str

    @property
    def subject(self) -> str:
        """What the command is about."""
        return f"{self.scope} {self.id}"


OperatorCommand = SetLimit | RemoveLimit | AddHalt | RemoveHalt


async def execute_command(
    store: controls_document.ControlStore,
    tenant: str,
    command: OperatorCommand,
    *,
    by: str,
    why: str,
    at: datetime,
) -> controls_document.TenantControls:
    """Execute a command, and return the controls that then stand in the store.

    Tries until no other operator comes in between; put a time limit around it. Raises `CommandError` for a command
    that changes nothing or cannot be given to this tenant, and what the store raises.
    """
    validate_command(tenant, command)
    while True:
        before = await store.read(tenant)
        changed = apply_command(before, command, by=by, why=why, at=at, stored_at=await store.now())
        if await store.replace(tenant, changed):
            return changed


async def store_raised_halts(
    store: controls_document.ControlStore, halts: controls_document.HaltRegistry, tenant: str
) -> list[controls_document.AppliedCommand]:
    """Store the halts that this process has raised, so that other processes and operators find them.

    A halt that another process stored before is left as it is. Returns the commands that were stored. Raises what the
    store raises; what is then still raised holds in this process, and is to be stored again.
    """
    actions = []
    for halt in halts.raised(tenant):
        command = AddHalt(halt.scope, halt.id, halt.spares_in_flight)
        try:
            controls = await execute_command(store, tenant, command, by=halt.by, why=halt.why, at=halt.at)
            actions.append(controls.actions[-1])
        except CommandError:
            controls = await store.read(tenant)
        if controls.halt(halt.scope, halt.id) is not None:
            halts.stored(tenant, halt, controls)
    return actions


def apply_command(
    controls: controls_document.TenantControls,
    command: OperatorCommand,
    *,
    by: str,
    why: str,
    at: datetime,
    stored_at: datetime | None = None,
) -> controls_document.TenantControls:
    """Return the next version of a document: changed by the command, with the action on its list.

    `stored_at` is the time by the store's clock, `at` that of the operator, which may be another. The serial follows the former.
    Raises `CommandError` for a command that changes nothing, and says what is there; and for a text that is too long.
    """
    serial = max(controls.serial + 1, controls_document.milliseconds(stored_at or at))
    author = _Author(controls.version + 1, serial, by, why, at)
    try:
        match command:
            case SetLimit():
                return _with_limit(controls, command, author)
            case RemoveLimit():
                return _without_limit(controls, command, author)
            case AddHalt():
                return _halted(controls, command, author)
            case RemoveHalt():
                return _resumed(controls, command, author)
            case _:
                assert_never(command)
    except ValidationError as e:
        first = e.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "command"
        raise CommandError(
            command.subject, f"{place}: {first['msg']}", "names, reasons and times that fit"
        ) from e


def validate_command(tenant: str, command: OperatorCommand) -> None:
    """Raise `CommandError` for a command that would hold for nothing at this tenant."""
    if not tenant:
        raise CommandError(
            command.subject, "it is for no tenant", f"the id of one, or {PLATFORM!r} for the platform"
        )
    match command:
        case SetLimit(limit):
            if tenant == PLATFORM:
                raise CommandError(
                    command.subject,
                    "a limit is counted within one tenant, and the platform is none",
                    "the id of a tenant; only halts hold for all of them",
                )
            _check_id(tenant, limit.scope, limit.id, command.subject)
        case AddHalt(scope, id_):
            _check_id(tenant, scope, id_, command.subject)
        case RemoveLimit() | RemoveHalt():
            pass  # what is there can always be removed
        case _:
            assert_never(command)


def _check_id(
    tenant: str, scope: limit_types.ScopeKind | controls_document.HaltScope, id_: str, subject: str
) -> None:
    if not id_:
        raise CommandError(subject, "it has no id", f"an id, or {limit_types.ANY!r} for every {scope}")
    known: tuple[str, ...] = ()
    if scope == limit_types.ScopeKind.WORKFLOW:
        known = (*EnvelopeWorkflow, limit_types.ANY)
    if scope == limit_types.ScopeKind.TENANT and tenant != PLATFORM:
        known = (tenant, limit_types.ANY)
    if known and id_ not in known:
        raise CommandError(subject, f"{tenant} has no such {scope}", ", ".join(known))


@dataclass(frozen=True, slots=True)
class _Author:
    """The operator of a new version, with reason and moment."""

    version: int
    serial: int
    by: str
    why: str
    at: datetime

    def on_limit(
        self, limit: limit_types.Limit, before: limit_types.Limit | None, after: limit_types.Limit | None
    ) -> controls_document.AppliedCommand:
        """Return the record of a change to the limit on the scope and window of `limit`, from `before` to `after`."""
        return controls_document.AppliedCommand(
            version=self.version, kind="remove_limit" if after is None else "set_limit",
            subject=limit_types.limited_text(limit.scope, limit.id, limit.window),
            before=_ceiling(before), after=_ceiling(after), by=self.by, why=self.why, at=self.at,
            scope=limit.scope, id=limit.id, window=limit.window,
            ceiling_before=before.ceiling.units if before else None,
            ceiling_after=after.ceiling.units if after else None, serial=self.serial,
        )  # fmt: skip

    def on_halt(
        self, command: AddHalt | RemoveHalt, before: str, after: str
    ) -> controls_document.AppliedCommand:
        """Return the record of a halt or its end."""
        return controls_document.AppliedCommand(
            version=self.version, kind="halt" if isinstance(command, AddHalt) else "resume",
            subject=command.subject, before=before, after=after, by=self.by, why=self.why, at=self.at,
            scope=command.scope, id=command.id, serial=self.serial,
            spares_in_flight=isinstance(command, AddHalt) and command.spares_in_flight,
        )  # fmt: skip


def _with_limit(
    controls: controls_document.TenantControls, command: SetLimit, author: _Author
) -> controls_document.TenantControls:
    limit = command.limit
    before = controls.limit(limit.scope, limit.id, limit.window)
    if before == limit:
        raise CommandError(
            command.subject, f"it is {limit_types.ceiling_text(limit.ceiling)} already", "another ceiling"
        )
    action = author.on_limit(limit, before, limit)
    return _next(controls, action, limits=(*_without(controls.limits, before), limit))


def _without_limit(
    controls: controls_document.TenantControls, command: RemoveLimit, author: _Author
) -> controls_document.TenantControls:
    before = controls.limit(command.scope, command.id, command.window)
    if before is None:
        raise CommandError(
            command.subject, "no such limit is set", _listed(map(limit_types.limit_text, controls.limits))
        )
    action = author.on_limit(before, before, None)
    return _next(controls, action, limits=_without(controls.limits, before))


def _halted(
    controls: controls_document.TenantControls, command: AddHalt, author: _Author
) -> controls_document.TenantControls:
    known = controls.halt(command.scope, command.id)
    if known is not None:
        raise CommandError(command.subject, f"is halted already, {_halt_text(known)}", "to resume it")
    halt = controls_document.Halt(
        scope=command.scope, id=command.id, by=author.by, why=author.why, at=author.at,
        spares_in_flight=command.spares_in_flight,
    )  # fmt: skip
    return _next(
        controls,
        author.on_halt(command, controls_document.RUNNING, controls_document.HALTED),
        halts=(*controls.halts, halt),
    )


def _resumed(
    controls: controls_document.TenantControls, command: RemoveHalt, author: _Author
) -> controls_document.TenantControls:
    known = controls.halt(command.scope, command.id)
    if known is None:
        halted = (f"{halt.scope} {halt.id}" for halt in controls.halts)
        raise CommandError(command.subject, "is not halted", _listed(halted))
    action = author.on_halt(
        command, f"{controls_document.HALTED} {_halt_text(known)}", controls_document.RUNNING
    )
    return _next(controls, action, halts=_without(controls.halts, known))


def _next(
    controls: controls_document.TenantControls,
    action: controls_document.AppliedCommand,
    *,
    limits: tuple[limit_types.Limit, ...] | None = None,
    halts: tuple[controls_document.Halt, ...] | None = None,
) -> controls_document.TenantControls:
    return controls_document.TenantControls(
        version=action.version,
        limits=controls.limits if limits is None else limits,
        halts=controls.halts if halts is None else halts,
        actions=controls_document.kept_actions((*controls.actions, action)),
        serial=action.serial or controls.serial + 1,
    )


def _without(those: tuple[T, ...], one: T | None) -> tuple[T, ...]:
    return tuple(other for other in those if other != one)


def _ceiling(limit: limit_types.Limit | None) -> str:
    return limit_types.NO_LIMIT if limit is None else limit_types.ceiling_text(limit.ceiling)


def _halt_text(halt: controls_document.Halt) -> str:
    why = f": {halt.why}" if halt.why else ""
    return f"by {halt.by} since {utc_text(halt.at)}{why}"


def _listed(texts: Iterable[str]) -> str:
    """Return what can be removed."""
    return ", ".join(texts) or "nothing, as none is set"
