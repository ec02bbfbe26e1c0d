"""Of the commands that copies of a document and logs have, the newest holds; where their order is unknown, the lower limit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.governance.commands import (
    AddHalt,
    OperatorCommand,
    RemoveHalt,
    RemoveLimit,
    SetLimit,
    apply_command,
)
from agentic_trading.governance.control_stores.file import MemoryControlStore
from agentic_trading.governance.controls_document import (
    KEPT_ACTIONS,
    AppliedCommand,
    Halt,
    HaltScope,
    TenantControls,
    event_of,
)
from agentic_trading.governance.controls_merge import (
    RESTORE,
    CommandHistory,
    history_of,
    merged_controls,
    restore_controls,
)
from agentic_trading.governance.errors import CommandError, ControlsUnreadableError
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from tests.build import NOW

TENANT = (ScopeKind.TENANT, ANY, Window.NONE)
HALT = AddHalt(HaltScope.AGENT, "cmt-1")
RESUME = RemoveHalt(HaltScope.AGENT, "cmt-1")
REMOVE = RemoveLimit(*TENANT)


def up_to(nusd: int) -> SetLimit:
    return SetLimit(Limit(*TENANT, nusd=nusd))


def document(
    *commands: OperatorCommand, second: int = 0, by: str = "ann", before: TenantControls | None = None
) -> TenantControls:
    """Return a document after commands, one a second."""
    controls = before or TenantControls()
    for number, command in enumerate(commands, start=second):
        controls = apply_command(
            controls, command, by=by, why="", at=NOW, stored_at=NOW + timedelta(seconds=number)
        )
    return controls


def of_an_older_release(controls: TenantControls) -> TenantControls:
    """Return a document as older releases wrote it: its commands have no serial."""
    actions = tuple(action.model_copy(update={"serial": None}) for action in controls.actions)
    return controls.model_copy(update={"actions": actions})


def merged(found: TenantControls, *known: TenantControls | Sequence[AppliedCommand]) -> TenantControls:
    histories = [history_of(one) if isinstance(one, TenantControls) else one for one in known]
    return merged_controls(found, histories, NOW + timedelta(hours=1)) or found


def ceiling(controls: TenantControls) -> int | None:
    limit = controls.limit(*TENANT)
    return None if limit is None else limit.nusd


def test_merge_restores_lost_limits_and_halts() -> None:
    known = document(up_to(5), HALT)

    restored = merged(TenantControls(), known)

    assert (restored.limits, restored.halts) == (known.limits, known.halts)
    assert restored.version == 1
    assert restored.serial > known.serial


def test_merge_skips_document_with_every_command() -> None:
    known = document(up_to(5), HALT)
    later = document(RESUME, up_to(9), second=2, before=known)

    assert merged_controls(later, [history_of(known), known.actions], NOW) is None


@pytest.mark.parametrize(("first", "second"), [(5, 9), (9, 5)])
def test_newer_limit_wins_over_lost_limit(first: int, second: int) -> None:
    lost, present = document(up_to(first)), document(up_to(second), second=1)

    assert ceiling(merged(present, lost)) == ceiling(merged(lost, present)) == second


def test_only_a_removal_lifts_a_limit() -> None:
    removed = document(up_to(5), REMOVE)

    assert ceiling(merged(TenantControls(), document(up_to(5)))) == 5
    assert ceiling(merged(document(up_to(5)), removed)) is None
    assert ceiling(merged(document(up_to(7), second=9), removed)) == 7


def test_halt_holds_without_newer_resume() -> None:
    halted = document(HALT)

    assert merged(TenantControls(), halted).halts == halted.halts
    assert not merged(halted, document(HALT, RESUME)).halts
    assert merged(document(HALT, RESUME), document(HALT, second=9)).halts


@pytest.mark.parametrize(("one", "other"), [(5, 9), (9, 5)])
def test_unordered_limits_keep_lower_ceiling(one: int, other: int) -> None:
    older, present = of_an_older_release(document(up_to(one))), document(up_to(other), second=1)

    result = merged(present, older)

    assert ceiling(result) == 5
    assert result.actions[-1].by == RESTORE
    assert ceiling(merged(older, present)) == 5


def test_unordered_limits_merge_per_unit() -> None:
    older = of_an_older_release(document(SetLimit(Limit(*TENANT, nusd=5, tokens=9))))
    present = document(SetLimit(Limit(*TENANT, nusd=7, calls=3)), second=1)

    assert merged(present, older).limits == (Limit(*TENANT, nusd=5, tokens=9, calls=3),)


def test_older_release_commands_keep_document_order() -> None:
    known = of_an_older_release(document(up_to(5), up_to(9), HALT, RESUME))
    found = of_an_older_release(document(up_to(5)))

    result = merged(found, known)

    assert (ceiling(result), result.halts) == (9, ())


def test_unordered_resume_does_not_lift_halt() -> None:
    resumed = of_an_older_release(document(HALT, RESUME))

    assert merged(document(HALT, second=1), resumed).halts
    assert merged(resumed, document(HALT, second=1)).halts


@pytest.mark.parametrize("author", ["config", "run"])
def test_unaware_config_cannot_raise_operator_limit(author: str) -> None:
    lost, present = document(up_to(5)), document(up_to(9), second=1, by=author)

    assert ceiling(merged(present, lost)) == ceiling(merged(lost, present)) == 5
    known = document(up_to(9), second=1, by=author, before=lost)
    assert ceiling(merged(lost, known)) == 9, "it knew the operator's"


def test_settled_command_yields_to_newer_command() -> None:
    older, present = of_an_older_release(document(up_to(5))), document(up_to(9), second=1)
    settled = merged(present, older)

    raised = document(up_to(50), second=7200, before=settled)

    assert ceiling(merged(raised, older, present, settled)) == 50
    assert ceiling(merged(settled, raised)) == 50


def test_restored_halt_keeps_sparing_in_flight() -> None:
    known = document(AddHalt(HaltScope.MODEL, "m", spares_in_flight=True), HALT)

    assert merged(TenantControls(), known).halts == known.halts
    assert merged(TenantControls(), known.actions).halts == known.halts


def test_restriction_without_command_is_restored() -> None:
    halt = Halt(scope=HaltScope.AGENT, id="a", by="ann", at=NOW)
    known = TenantControls(version=3, limits=(Limit(*TENANT, nusd=5),), halts=(halt,))

    result = merged(TenantControls(), known)

    assert (result.limits, result.halts) == (known.limits, known.halts)


def test_logged_resume_lifts_forgotten_halt() -> None:
    resumed = document(HALT, RESUME)
    found = TenantControls(version=1, halts=document(HALT).halts)

    assert not merged(found, resumed.actions).halts


def test_document_keeps_last_command_per_subject() -> None:
    controls = document(up_to(5), REMOVE, HALT, RESUME)
    for number in range(KEPT_ACTIONS + 5):
        controls = document(SetLimit(Limit(ScopeKind.AGENT, "a", Window.DAY, calls=number)), before=controls)

    assert ("remove_limit", "tenant * in all") in {(one.kind, one.subject) for one in controls.actions}
    assert ("resume", "agent cmt-1") in {(one.kind, one.subject) for one in controls.actions}


def test_unreadable_command_is_refused() -> None:
    (command,) = document(up_to(5)).actions

    with pytest.raises(ControlsUnreadableError, match="no scope, window or ceiling"):
        merged(TenantControls(), [command.model_copy(update={"window": None})])
    with pytest.raises(ControlsUnreadableError, match="cap_limit"):
        merged(TenantControls(), [command.model_copy(update={"kind": "cap_limit"})])


def test_settled_commands_have_distinct_event_ids() -> None:
    older = of_an_older_release(document(up_to(5), AddHalt(HaltScope.TENANT, ANY)))
    present = document(up_to(9), AddHalt(HaltScope.TENANT, ANY), second=1)

    settled = [one for one in merged(present, older).actions if one.by == RESTORE]

    assert len(settled) == 2
    assert len({event_of("acme", one).id for one in settled}) == 2


async def test_log_restores_commands_per_tenant() -> None:
    commands, store = CommandHistory(), MemoryControlStore()
    for tenant, controls in (("acme", document(up_to(5))), ("other", document(up_to(9)))):
        for action in controls.actions:
            commands.read(event_of(tenant, action))

    restored = await restore_controls(store, "acme", [commands.of("acme")])
    again = await restore_controls(store, "acme", [commands.of("acme")])

    assert restored.changes == ("limit tenant * in all: 0.000000005 USD (was no limit)",)
    assert (again.is_changed, again.controls) == (False, restored.controls)
    assert ceiling(await store.read("acme")) == 5
    assert (await store.read("other")).version == 0


COMMANDS: dict[str, Callable[[int], OperatorCommand]] = {
    "limit": up_to,
    "remove": lambda _: REMOVE,
    "halt": lambda _: HALT,
    "resume": lambda _: RESUME,
}


@dataclass
class World:
    """A server with copies of itself, two workers that may not read for a while, and their logs."""

    found: TenantControls = field(default_factory=TenantControls)
    copies: list[TenantControls] = field(default_factory=lambda: [TenantControls()])
    seen: dict[int, TenantControls | None] = field(default_factory=lambda: {0: None, 1: None})
    logs: dict[int, list[AppliedCommand]] = field(default_factory=lambda: {0: [], 1: []})
    newest: dict[AppliedCommand, int] = field(default_factory=dict)
    moment: int = 0

    def take(self, step: str, number: int) -> None:
        if step in COMMANDS:
            self.command(COMMANDS[step](number))
        elif step == "copy":
            self.copies.append(self.found)
        elif step == "set back":  # the first copy is empty
            self.found = self.copies[number % len(self.copies)]
        elif step == "read":
            self.read(number % 2)
        else:
            self.seen[number % 2] = None

    def command(self, command: OperatorCommand) -> None:
        self.moment += 1
        try:
            self.found = document(command, second=self.moment, before=self.found)
        except CommandError:
            return
        self.newest[self.found.actions[-1]] = self.moment

    def read(self, worker: int) -> None:
        """Read as a running worker does, or as one that has just started and has its log."""
        seen = self.seen[worker]
        known = self.logs[worker] if seen is None else history_of(seen)
        merged_now = merged_controls(self.found, [known], NOW + timedelta(seconds=self.moment))
        self.found = self.seen[worker] = merged_now or self.found
        self.logs[worker] += [one for one in self.found.actions if one not in self.logs[worker]]

    def newest_of(self, *places: Sequence[AppliedCommand]) -> dict[str, AppliedCommand]:
        known = sorted({one for place in places for one in place}, key=lambda one: self.newest[one])
        return {one.subject: one for one in known}


STEPS = st.tuples(
    st.sampled_from([*COMMANDS, "copy", "set back", "read", "read", "restart"]), st.integers(0, 9)
)


@given(st.lists(STEPS, max_size=40))
def test_newest_known_command_always_wins(steps: list[tuple[str, int]]) -> None:
    world = World()
    for step, number in steps:
        world.take(step, number)
        for worker, seen in world.seen.items():
            if seen is not None:
                holds(seen, world.newest_of(seen.actions, world.logs[worker]))

    world.found = merged(world.found, *world.logs.values())

    holds(world.found, world.newest_of(world.found.actions, *world.logs.values()))


def holds(controls: TenantControls, newest: dict[str, AppliedCommand]) -> None:
    limit, halt = newest.get("tenant * in all"), newest.get("agent cmt-1")
    most = None if limit is None or limit.ceiling_after is None else limit.ceiling_after[0]
    assert ceiling(controls) == most
    assert bool(controls.halts) is (halt is not None and halt.kind == "halt")
