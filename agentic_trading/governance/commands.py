"""The commands of operators, and their effect on a tenant's controls document."""

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
    """Set a limit. It replaces all units of a limit on the same scope, id and window."""

    limit: limit_types.Limit

    @property
    def subject(self) -> str:
        """The limit that is set."""
        return limit_types.limited_text(self.limit.scope, self.limit.id, self.limit.window)


@dataclass(frozen=True, slots=True)
class RemoveLimit:
    """Remove the limit on exactly this scope, id and window."""

    scope: limit_types.ScopeKind
    id: str
    window: limit_types.Window

    @property
    def subject(self) -> str:
        """The limit that is removed."""
        return limit_types.limited_text(self.scope, self.id, self.window)


@dataclass(frozen=True, slots=True)
class AddHalt:
    """Halt a scope. Its calls in flight are cancelled and settled, or spared."""

    scope: controls_document.HaltScope
    id: str
    spares_in_flight: bool = False

    @property
    def subject(self) -> str:
        """The scope that is halted."""
        return f"{self.scope} {self.id}"


@dataclass(frozen=True, slots=True)
class RemoveHalt:
    """Remove the halt of exactly this scope and id. Other halts still apply."""

    scope: controls_document.HaltScope
    id: str

    @property
    def subject(self) -> str:
        """The scope that is resumed."""
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
    """Execute a command, and return the controls in the store.

    Retries without limit if another operator writes at the same time: use a time-out. Errors of the store are
    raised too.

    Raises:
        CommandError: If the command would have no effect, or is invalid for this tenant.

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
    """Store the halts raised by this process, so that other processes and operators see them.

    A halt that another process has already stored is not changed. Returns the stored commands. If the store
    raises, the remaining halts still apply in this process, and this can be called again.
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
    """Return the next version of a document, with the command applied and recorded.

    Args:
        controls: The current document.
        command: The command.
        by: The operator.
        why: The reason.
        at: The operator's time.
        stored_at: The store's time. The serial follows it, because clocks of operators differ.

    Raises:
        CommandError: If the command would have no effect, or a text is too long.

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
            command.subject, f"{place}: {first['msg']}", "valid names, reasons and times"
        ) from e


def validate_command(tenant: str, command: OperatorCommand) -> None:
    """Raise `CommandError` if a command cannot apply to anything of this tenant."""
    if not tenant:
        raise CommandError(
            command.subject, "it has no tenant", f"the id of a tenant, or {PLATFORM!r} for the platform"
        )
    match command:
        case SetLimit(limit):
            if tenant == PLATFORM:
                raise CommandError(
                    command.subject,
                    "a limit applies to one tenant, and the platform is not a tenant",
                    "the id of a tenant (only halts can apply to all tenants)",
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
    """The operator of a new version, with reason and time."""

    version: int
    serial: int
    by: str
    why: str
    at: datetime

    def on_limit(
        self, limit: limit_types.Limit, before: limit_types.Limit | None, after: limit_types.Limit | None
    ) -> controls_document.AppliedCommand:
        """Return the record of a changed limit."""
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
        """Return the record of a halt or a resume."""
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
        raise CommandError(command.subject, f"is halted already, {_halt_text(known)}", "resume it")
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
    return ", ".join(texts) or "none, because none is set"
