"""Merge copies and logs of controls: for each limit and halt, the newest command applies."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Final, NamedTuple

from agentic_trading.governance import controls_document
from agentic_trading.governance import limits as limit_types
from agentic_trading.governance.errors import ControlsUnreadableError
from agentic_trading.governance.events import KINDS
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import Record

RESTORE: Final = "restore"
"""The author of a command that replaces several commands of unknown order."""

AUTOMATIC: Final = frozenset({"config", "run", RESTORE})
"""Authors that are not operators.

Their commands do not replace an operator's command that they had not read.
"""

_UNKNOWN_ORDER: Final = "the order of the commands is unknown: the lower limit holds, and a halt"
_FORGOTTEN: Final = "unknown"
_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)

Subject = tuple[bool, str]
History = Sequence[controls_document.AppliedCommand]
"""The commands of one document or log, oldest first."""


class _Id(NamedTuple):
    """Identifies a command. The version alone does not, because versions start again in a new store."""

    version: int
    at: datetime
    kind: str
    after: str
    serial: int | None


Standing = dict[Subject, dict[_Id, controls_document.AppliedCommand]]


@dataclass(slots=True)
class _Later:
    """The commands on a subject after a point of a history."""

    serial: int = -1
    version: int = -1

    def replaces(self, command: controls_document.AppliedCommand) -> bool:
        """Whether one of them replaces `command`, because its author had read it."""
        if command.serial is None:
            return self.serial >= 0 or self.version > command.version
        return self.serial > command.serial or self.version > command.version

    def add(self, command: controls_document.AppliedCommand) -> None:
        """Add the next command, from newest to oldest."""
        if command.serial is None:
            self.version = max(self.version, command.version)
        else:
            self.serial = max(self.serial, command.serial)


def history_of(controls: controls_document.TenantControls) -> list[controls_document.AppliedCommand]:
    """Return a document's commands, oldest first. Restrictions without a command get a derived one."""
    acted = {controls_document.subject_of(action) for action in controls.actions}
    forgotten = [_forgotten_limit(limit) for limit in controls.limits]
    forgotten += [_forgotten_halt(halt) for halt in controls.halts]
    return [*(one for one in forgotten if controls_document.subject_of(one) not in acted), *controls.actions]


def standing_commands(histories: Iterable[History]) -> Standing:
    """Return the commands on each subject that are not replaced: several if their order is unknown.

    A command is newer if it comes later in the same history, or if it has a larger serial and is an
    operator's.
    """
    known: Standing = {}
    replaced: dict[Subject, set[_Id]] = {}
    for history in histories:
        for command in history:
            known.setdefault(controls_document.subject_of(command), {})[_id_of(command)] = command
        later: dict[Subject, _Later] = {}
        for command in reversed(history):
            subject = controls_document.subject_of(command)
            after = later.setdefault(subject, _Later())
            if after.replaces(command):
                replaced.setdefault(subject, set()).add(_id_of(command))
            after.add(command)
    return {subject: _newest(commands, replaced.get(subject, set())) for subject, commands in known.items()}


def merged_controls(
    found: controls_document.TenantControls, histories: Iterable[History], now: datetime, *, serial: int = 0
) -> controls_document.TenantControls | None:
    """Return the next version of `found` with the missing commands of `histories`, if any.

    Returns None if it lacks none. For each limit or halt the newer command applies. If their order is
    unknown, the lower ceiling of each unit and a halt apply. The new serial is larger than `serial`. Raises
    `ControlsUnreadableError` for a command that this release cannot read.
    """
    own = history_of(found)
    before, after = standing_commands([own]), standing_commands([own, *histories])
    changed = {
        subject: ones for subject, ones in after.items() if ones.keys() != before.get(subject, {}).keys()
    }
    if not changed:
        return None
    serials = (one.serial or 0 for ones in changed.values() for one in ones.values())
    author = _Author(found.version + 1, max(found.serial, serial, *serials) + 1, now)
    limits = {(True, limit_types.limited_text(one.scope, one.id, one.window)): one for one in found.limits}
    halts = {(False, f"{one.scope} {one.id}"): one for one in found.halts}
    actions = list(found.actions)
    for number, (subject, ones) in enumerate(changed.items()):
        commands = [_readable(one) for one in ones.values()]
        actions += [one for one in commands if one not in found.actions]
        limit, halt = _limit_of(commands), _halt_of(commands)
        if len(commands) > 1:
            actions.append(author.settled(commands[0], limit, halt, number))
        limits.pop(subject, None)
        halts.pop(subject, None)
        if limit is not None:
            limits[subject] = limit
        if halt is not None:
            halts[subject] = halt
    return controls_document.TenantControls(
        version=author.version,
        limits=tuple(limits.values()),
        halts=tuple(halts.values()),
        actions=controls_document.kept_actions(actions),
        serial=max(author.serial, controls_document.milliseconds(now)),
    )


@dataclass(frozen=True, slots=True)
class RestoredControls:
    """The controls in a store after a restore, whether it added commands, and the changed restrictions."""

    controls: controls_document.TenantControls
    is_changed: bool = False
    changes: tuple[str, ...] = ()


async def restore_controls(
    store: controls_document.ControlStore,
    tenant: str,
    histories: Sequence[History],
    *,
    serial: int = 0,
    writes: bool = True,
) -> RestoredControls:
    """Add the missing commands of `histories` to a store, and return its controls.

    With `writes=False`, the store is not changed, and the same errors are raised. If another process writes at
    the same time, it retries without limit, so use a time-out. Raises errors of the store, and
    `ControlsUnreadableError` for a command that this release cannot read.
    """
    while True:
        found = await store.read(tenant)
        merged = None
        if any(histories):
            merged = merged_controls(found, histories, await store.now(), serial=serial)
        if merged is None or not writes:
            return RestoredControls(found)
        if await store.replace(tenant, merged):
            return RestoredControls(merged, is_changed=True, changes=tuple(_changes(found, merged)))


@dataclass(frozen=True, slots=True)
class _Author:
    """The version, serial and time of a merged document."""

    version: int
    serial: int
    at: datetime

    def settled(
        self,
        command: controls_document.AppliedCommand,
        limit: limit_types.Limit | None,
        halt: controls_document.Halt | None,
        number: int,
    ) -> controls_document.AppliedCommand:
        """Return the command that replaces several of unknown order.

        `number` makes its time unique.
        """
        is_limit = command.kind in controls_document.LIMIT_COMMANDS
        kind: controls_document.CommandKind = "halt" if halt is not None else "resume"
        before, after = ("", controls_document.HALTED if halt is not None else controls_document.RUNNING)
        if is_limit:
            kind = "set_limit" if limit is not None else "remove_limit"
            after = limit_types.NO_LIMIT if limit is None else limit_types.ceiling_text(limit.ceiling)
        return command.model_copy(update={
            "version": self.version, "kind": kind, "before": before, "after": after, "by": RESTORE,
            "why": _UNKNOWN_ORDER, "at": self.at + timedelta(microseconds=number), "serial": self.serial,
            "ceiling_before": None, "ceiling_after": None if limit is None else limit.ceiling.units,
        })  # fmt: skip


@dataclass(slots=True)
class CommandHistory:
    """The operator commands of one log by tenant."""

    _commands: dict[str, list[controls_document.AppliedCommand]] = field(default_factory=dict)

    def read(self, record: Record) -> None:
        """Read a record.

        Other records are ignored. Raises `UnreadableBodyError` if a command cannot be read.
        """
        if isinstance(record, LLMInteraction) or record.kind != controls_document.AppliedCommand.KIND:
            return
        body = KINDS.must(record)
        if isinstance(body, controls_document.AppliedCommand):
            self._commands.setdefault(record.tenant_id, []).append(body)

    def of(self, tenant: str) -> History:
        """Return a tenant's commands, in the order of the log."""
        return self._commands.get(tenant, [])


def _newest(
    commands: dict[_Id, controls_document.AppliedCommand], replaced: set[_Id]
) -> dict[_Id, controls_document.AppliedCommand]:
    # Only operators count, because a configuration or a run may have written without having read an
    # operator's command.
    given = [one.serial for one in commands.values() if one.serial is not None and one.by not in AUTOMATIC]
    newest = max(given, default=-1)
    named = {(one.kind, one.at) for one in commands.values() if one.version}
    return {
        id_: one
        for id_, one in commands.items()
        if id_ not in replaced
        and (one.serial is None or one.serial >= newest)
        and (one.version or (one.kind, one.at) not in named)  # its command is known from elsewhere
    }


def _limit_of(commands: Iterable[controls_document.AppliedCommand]) -> limit_types.Limit | None:
    """Return the lowest limit of these commands, unit by unit."""
    # A removal does not count here, because it may be older than the limits. The stricter command wins.
    limits = [limit for one in commands if (limit := _limit_by(one)) is not None]
    if not limits:
        return None
    first, ceiling = (
        limits[0],
        reduce(limit_types.Ceiling.tighter, (one.ceiling for one in limits), limit_types.UNLIMITED),
    )
    return limit_types.Limit(first.scope, first.id, first.window, *ceiling.units)


def _limit_by(command: controls_document.AppliedCommand) -> limit_types.Limit | None:
    if command.kind != "set_limit":
        return None
    if (
        command.window is None
        or command.ceiling_after is None
        or command.scope not in set(limit_types.ScopeKind)
    ):
        raise _unreadable(command, "it has no scope, window or ceiling")
    return limit_types.Limit(
        limit_types.ScopeKind(command.scope), command.id, command.window, *command.ceiling_after
    )


def _halt_of(commands: Iterable[controls_document.AppliedCommand]) -> controls_document.Halt | None:
    """Return the oldest halt of these commands."""
    # A resume does not count here, because it may be older than the halt. The stricter command wins.
    halts = [one for one in commands if one.kind == "halt"]
    if not halts:
        return None
    first = min(halts, key=lambda one: one.at)
    if first.scope not in set(controls_document.HaltScope):
        raise _unreadable(first, "it has no scope")
    return controls_document.Halt(
        scope=controls_document.HaltScope(first.scope), id=first.id, by=first.by, why=first.why, at=first.at,
        spares_in_flight=all(one.spares_in_flight for one in halts),
    )  # fmt: skip


def _readable(command: controls_document.AppliedCommand) -> controls_document.AppliedCommand:
    """Return the command. Raises `ControlsUnreadableError` for an unknown kind."""
    # A kind of a newer release may be a restriction, so that ignoring it would let calls run.
    if command.kind not in (*controls_document.LIMIT_COMMANDS, *controls_document.HALT_COMMANDS):
        raise _unreadable(command, f"its kind is {command.kind!r}")
    return command


def _unreadable(command: controls_document.AppliedCommand, why: str) -> ControlsUnreadableError:
    where = f"the command {command.kind} {command.subject} by {command.by} of {command.at.isoformat()}"
    return ControlsUnreadableError(where, why)


def _forgotten_limit(limit: limit_types.Limit) -> controls_document.AppliedCommand:
    return controls_document.AppliedCommand(
        version=0, kind="set_limit", subject=limit_types.limited_text(limit.scope, limit.id, limit.window),
        before="", after=limit_types.ceiling_text(limit.ceiling), by=_FORGOTTEN, at=_NEVER,
        scope=limit.scope, id=limit.id, window=limit.window, ceiling_after=limit.ceiling.units,
    )  # fmt: skip


def _forgotten_halt(halt: controls_document.Halt) -> controls_document.AppliedCommand:
    return controls_document.AppliedCommand(
        version=0, kind="halt", subject=f"{halt.scope} {halt.id}", before="", after=controls_document.HALTED,
        by=halt.by, why=halt.why, at=halt.at, scope=halt.scope, id=halt.id, spares_in_flight=halt.spares_in_flight,
    )  # fmt: skip


def _id_of(command: controls_document.AppliedCommand) -> _Id:
    return _Id(command.version, command.at, command.kind, command.after, command.serial)


def _changes(
    found: controls_document.TenantControls, merged: controls_document.TenantControls
) -> Iterable[str]:
    for limit in merged.limits:
        before = found.limit(limit.scope, limit.id, limit.window)
        if before != limit:
            was = limit_types.NO_LIMIT if before is None else limit_types.ceiling_text(before.ceiling)
            yield f"limit {limit_types.limit_text(limit)} (was {was})"
    for limit in found.limits:
        if merged.limit(limit.scope, limit.id, limit.window) is None:
            yield f"limit {limit_types.limited_text(limit.scope, limit.id, limit.window)}: removed again"
    yield from (f"halt {one.scope} {one.id}" for one in merged.halts if not found.halt(one.scope, one.id))
    yield from (f"resume {one.scope} {one.id}" for one in found.halts if not merged.halt(one.scope, one.id))
