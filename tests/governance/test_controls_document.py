"""Orders make the next version of a document, or say why they do not; halts hold for what they name."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentic_trading.governance.commands import (
    AddHalt,
    OperatorCommand,
    RemoveHalt,
    RemoveLimit,
    SetLimit,
    apply_command,
    execute_command,
)
from agentic_trading.governance.control_stores.file import MemoryControlStore
from agentic_trading.governance.controls_document import (
    KEPT_ACTIONS,
    AppliedCommand,
    Halt,
    HaltScope,
    TenantControls,
    event_of,
    milliseconds,
)
from agentic_trading.governance.errors import CommandError
from agentic_trading.governance.limits import (
    ANY,
    LARGEST,
    NO_LIMIT,
    Limit,
    ScopeKind,
    Window,
    limit_text,
    usd_text,
)
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMProvider
from agentic_trading.llm.event import PLATFORM, Event
from tests.build import NOW, envelope

DAILY = Limit(ScopeKind.TENANT, ANY, Window.DAY, nusd=25 * 10**9, calls=1000)
HALT = AddHalt(HaltScope.AGENT, "cmt-1")


def given_all(orders: Sequence[OperatorCommand], controls: TenantControls | None = None) -> TenantControls:
    """Return the document after these orders."""
    controls = controls or TenantControls()
    for number, wanted in enumerate(orders):
        controls = apply_command(controls, wanted, by="ann", why="tests", at=NOW + timedelta(seconds=number))
    return controls


def refused(controls: TenantControls, wanted: OperatorCommand) -> CommandError:
    """Return the error that an order ends in."""
    with pytest.raises(CommandError) as caught:
        apply_command(controls, wanted, by="ann", why="", at=NOW)
    return caught.value


async def refused_for(tenant: str, wanted: OperatorCommand) -> CommandError:
    """Return the error that an order given to a tenant ends in."""
    with pytest.raises(CommandError) as caught:
        await execute_command(MemoryControlStore(), tenant, wanted, by="ann", why="", at=NOW)
    return caught.value


def halted(scope: HaltScope, id_: str) -> TenantControls:
    return given_all([AddHalt(scope, id_)])


def test_command_increments_version_and_logs_action() -> None:
    controls = given_all([SetLimit(DAILY)])

    assert (controls.version, controls.limits) == (1, (DAILY,))
    assert controls.actions == (
        AppliedCommand(
            version=1,
            kind="set_limit",
            subject="tenant * per day",
            before=NO_LIMIT,
            after="25 USD, 1000 calls",
            by="ann",
            why="tests",
            at=NOW,
            scope="tenant",
            id="*",
            window=Window.DAY,
            ceiling_before=None,
            ceiling_after=(25 * 10**9, None, 1000),
            serial=milliseconds(NOW),
        ),
    )


def test_new_limit_replaces_previous_limit_entirely() -> None:
    hourly = replace(DAILY, window=Window.HOUR)

    controls = given_all([
        SetLimit(DAILY),
        SetLimit(hourly),
        SetLimit(replace(DAILY, nusd=None, tokens=7, calls=None)),
    ])

    assert set(controls.limits) == {hourly, Limit(ScopeKind.TENANT, ANY, Window.DAY, tokens=7)}
    assert (controls.actions[-1].before, controls.actions[-1].after) == ("25 USD, 1000 calls", "7 tokens")


def test_removed_limit_is_deleted() -> None:
    controls = given_all([SetLimit(DAILY), RemoveLimit(DAILY.scope, DAILY.id, DAILY.window)])

    assert (controls.version, controls.limits) == (2, ())
    assert (controls.actions[-1].before, controls.actions[-1].after) == ("25 USD, 1000 calls", NO_LIMIT)


def test_halt_lasts_until_resumed() -> None:
    halted = given_all([HALT])
    resumed = given_all([RemoveHalt(HALT.scope, HALT.id)], halted)

    assert halted.halts == (Halt(scope=HALT.scope, id=HALT.id, by="ann", why="tests", at=NOW),)
    assert resumed.halts == ()
    assert resumed.actions[-1].before == "halted by ann since 2026-01-02T00:00:00Z: tests"
    assert [action.after for action in resumed.actions] == ["halted", "running"]


@pytest.mark.parametrize(
    ("there", "wanted", "said"),
    [
        ([SetLimit(DAILY)], SetLimit(DAILY), "tenant * per day: it is 25 USD, 1000 calls already"),
        (
            [SetLimit(DAILY)],
            RemoveLimit(ScopeKind.TENANT, ANY, Window.HOUR),
            "tenant * per day: 25 USD, 1000 calls",
        ),
        (
            [],
            RemoveLimit(ScopeKind.TENANT, ANY, Window.NONE),
            "tenant * in all: no such limit is set. Allowed: none",
        ),
        ([HALT], HALT, "is halted already, by ann since 2026-01-02T00:00:00Z: tests. Allowed: resume it"),
        ([HALT], RemoveHalt(HaltScope.AGENT, "cmt-2"), "agent cmt-2: is not halted. Allowed: agent cmt-1"),
        ([HALT], RemoveHalt(HaltScope.AGENT, ANY), "is not halted. Allowed: agent cmt-1"),
        ([], RemoveHalt(HaltScope.MODEL, "m"), "model m: is not halted. Allowed: none"),
    ],
)
def test_command_without_effect_is_rejected(
    there: list[OperatorCommand], wanted: OperatorCommand, said: str
) -> None:
    assert said in str(refused(given_all(there), wanted))


def test_invalid_author_or_reason_is_rejected() -> None:
    for by, why in (("", ""), ("x" * 501, ""), ("ann", "x" * 2001)):
        with pytest.raises(CommandError, match=r"agent cmt-1: (by|why): "):
            apply_command(TenantControls(), HALT, by=by, why=why, at=NOW)


async def test_platform_accepts_halts_but_no_limits() -> None:
    error = await refused_for(PLATFORM, SetLimit(DAILY))

    assert "only halts can apply to all tenants" in error.allowed
    board = MemoryControlStore()
    for scope, id_ in ((HaltScope.TENANT, "acme"), (HaltScope.TENANT, ANY), (HaltScope.MODEL, "anthropic/*")):
        await execute_command(board, PLATFORM, AddHalt(scope, id_), by="ann", why="", at=NOW)
    assert len((await board.read(PLATFORM)).halts) == 3


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        (AddHalt(HaltScope.TENANT, "other"), "acme, *"),
        (SetLimit(Limit(ScopeKind.TENANT, "other", Window.DAY, calls=1)), "acme, *"),
        (AddHalt(HaltScope.WORKFLOW, "analyses"), "analysis, planning, execution, general, *"),
        (
            SetLimit(Limit(ScopeKind.WORKFLOW, "exec", Window.DAY, calls=1)),
            "analysis, planning, execution, general, *",
        ),
        (AddHalt(HaltScope.AGENT, ""), "an id, or '*' for every agent"),
    ],
)
async def test_command_with_unknown_target_is_rejected(wanted: OperatorCommand, allowed: str) -> None:
    assert (await refused_for("acme", wanted)).allowed == allowed


async def test_command_without_tenant_is_rejected() -> None:
    assert "no tenant" in (await refused_for("", HALT)).reason


async def test_obsolete_halt_can_be_removed() -> None:
    board = MemoryControlStore()
    halt = Halt(scope=HaltScope.WORKFLOW, id="of-an-older-version", by="ann", at=NOW)
    await board.replace("acme", TenantControls(version=1, halts=(halt,)))

    left = await execute_command(board, "acme", RemoveHalt(halt.scope, halt.id), by="ann", why="", at=NOW)

    assert left.halts == ()


@pytest.mark.parametrize(
    ("scope", "id_"),
    [
        (HaltScope.TENANT, "default"),
        (HaltScope.AGENT, "analyst-1"),
        (HaltScope.WORKFLOW, "general"),
        (HaltScope.MODEL, "claude-sonnet-5-5"),
        (HaltScope.MODEL, "anthropic/claude-sonnet-5-5"),
        (HaltScope.MODEL, "anthropic/*"),
        *((scope, ANY) for scope in HaltScope if scope is not HaltScope.ENTRIES),
    ],
)
def test_halt_matches_named_target(scope: HaltScope, id_: str) -> None:
    controls = halted(scope, id_)

    assert controls.halt_for(envelope()) == controls.halts[0]


@pytest.mark.parametrize(
    ("scope", "id_"),
    [
        (HaltScope.TENANT, "defaul"),
        (HaltScope.AGENT, "analyst"),
        (HaltScope.AGENT, "analyst-*"),
        (HaltScope.WORKFLOW, "execution"),
        (HaltScope.MODEL, "claude"),
        (HaltScope.MODEL, "openai/claude-sonnet-5-5"),
        (HaltScope.ENTRIES, ANY),
        (HaltScope.MODEL, "openai/*"),
        (HaltScope.MODEL, "anthropic"),
    ],
)
def test_halt_ignores_other_targets(scope: HaltScope, id_: str) -> None:
    assert halted(scope, id_).halt_for(envelope()) is None


def test_agent_type_halts_agent_without_id() -> None:
    controls = halted(HaltScope.AGENT, "analyst")

    assert controls.halt_for(envelope(agent_id="")) is not None
    assert halted(HaltScope.AGENT, "unnamed").halt_for(envelope(agent_id="", agent_type="")) is not None


def test_model_with_slash_can_be_halted() -> None:
    asked = envelope(provider=LLMProvider.OPENAI, model="Qwen/Qwen3-8B")

    assert halted(HaltScope.MODEL, "Qwen/Qwen3-8B").halt_for(asked) is not None
    assert halted(HaltScope.MODEL, "openai/Qwen/Qwen3-8B").halt_for(asked) is not None


def test_oldest_halt_is_reported() -> None:
    controls = given_all([AddHalt(HaltScope.MODEL, ANY), AddHalt(HaltScope.TENANT, ANY)])

    assert controls.halt_for(envelope()) == controls.halts[0]


def test_document_keeps_last_actions() -> None:
    orders = [SetLimit(replace(DAILY, calls=calls)) for calls in range(KEPT_ACTIONS + 5)]

    controls = given_all(orders)

    assert [action.version for action in controls.actions] == list(range(6, KEPT_ACTIONS + 6))


def test_equal_actions_make_equal_events() -> None:
    action = given_all([HALT]).actions[0]

    one, other = event_of("acme", action), event_of("acme", action.model_copy())

    assert one == other
    assert (one.kind, one.trace_id, one.tenant_id, one.time) == (
        "operator.commanded",
        "operator-acme",
        "acme",
        NOW,
    )
    assert one.body["subject"] == "agent cmt-1"
    assert Event.from_wire(one.wire).body == one.body
    assert event_of("other", action).id != one.id


def test_new_store_action_gets_distinct_event() -> None:
    lost = apply_command(TenantControls(), HALT, by="ann", why="", at=NOW).actions[0]
    new = apply_command(TenantControls(), HALT, by="ann", why="", at=NOW + timedelta(days=1)).actions[0]

    assert event_of("acme", lost).id != event_of("acme", new).id


def test_duplicate_limits_and_halts_are_rejected() -> None:
    halt = Halt(scope=HaltScope.AGENT, id="a", by="ann", at=NOW)

    for twice in ({"limits": (DAILY, replace(DAILY, calls=5))}, {"halts": (halt, halt)}):
        with pytest.raises(ValidationError, match=r"twice\. Allowed: once"):
            TenantControls.model_validate(twice)


@pytest.mark.parametrize(
    "unknown",
    [
        {"version": 1, "pauses": []},
        {"version": 1, "limits": [{"scope": "tenant", "id": "*", "window": "day", "calls": 1, "images": 2}]},
        {
            "version": 1,
            "halts": [{"scope": "agent", "id": "a", "by": "b", "at": "2026-01-02T00:00:00Z", "until": 1}],
        },
    ],
)
def test_unknown_restriction_is_rejected(unknown: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TenantControls.model_validate(unknown)


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (DAILY, "tenant * per day: 25 USD, 1000 calls"),
        (Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=500_000_000), "trace * in all: 0.5 USD"),
        (
            Limit(ScopeKind.AGENT, "a", Window.MINUTE, nusd=5, tokens=1, calls=1),
            "agent a per minute: 0.000000005 USD, 1 token, 1 call",
        ),
        (
            Limit(ScopeKind.CALL, ANY, Window.MONTH, nusd=0, tokens=LARGEST),
            "call * per month: 0 USD, 9007199254740992 tokens",
        ),
    ],
)
def test_limit_is_formatted_as_text(limit: Limit, text: str) -> None:
    assert limit_text(limit) == text


@given(st.integers(0, LARGEST))
def test_usd_amount_is_formatted_exactly(nusd: int) -> None:
    whole, _, part = usd_text(nusd).removesuffix(" USD").partition(".")

    assert int(whole) * 10**9 + int(part.ljust(9, "0")) == nusd


ANY_ORDER = st.one_of(
    st.builds(
        SetLimit,
        st.builds(
            Limit,
            st.sampled_from(ScopeKind),
            st.sampled_from(["*", "a"]),
            st.sampled_from(Window),
            st.integers(0, 2),
        ),
    ),
    st.builds(RemoveLimit, st.sampled_from(ScopeKind), st.sampled_from(["*", "a"]), st.sampled_from(Window)),
    st.builds(AddHalt, st.sampled_from(HaltScope), st.sampled_from(["*", "a"])),
    st.builds(RemoveHalt, st.sampled_from(HaltScope), st.sampled_from(["*", "a"])),
)


@given(st.lists(ANY_ORDER, max_size=30))
def test_random_commands_version_and_round_trip(orders: list[OperatorCommand]) -> None:
    controls, done = TenantControls(), 0
    for wanted in orders:
        before = controls
        try:
            controls = apply_command(controls, wanted, by="ann", why="", at=NOW)
            done += 1
        except CommandError:
            continue
        assert (controls.limits, controls.halts) != (before.limits, before.halts)
        assert controls.serial > before.serial

    assert controls.version == len(controls.actions) == done
    assert TenantControls.model_validate_json(controls.model_dump_json(exclude_none=True)) == controls


def test_every_workflow_can_be_halted() -> None:
    for workflow in EnvelopeWorkflow:
        assert halted(HaltScope.WORKFLOW, workflow).halt_for(envelope(workflow=workflow)) is not None
