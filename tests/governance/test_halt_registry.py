"""What is halted does not run, and what runs is ended when it is halted."""

import asyncio
from collections.abc import Iterable

import pytest

from agentic_trading.governance.commands import RemoveHalt, execute_command, store_raised_halts
from agentic_trading.governance.control_stores.file import MemoryControlStore
from agentic_trading.governance.controls_document import (
    Halt,
    HaltRegistry,
    HaltScope,
    TenantControls,
)
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.event import PLATFORM
from tests.build import NOW
from tests.gateway import asking


def halted(*pairs: tuple[HaltScope, str]) -> TenantControls:
    return TenantControls(
        version=1, halts=tuple(Halt(scope=scope, id=id_, by="ann", why="odd", at=NOW) for scope, id_ in pairs)
    )


def halts(tenant: str, *pairs: tuple[HaltScope, str]) -> HaltRegistry:
    known = HaltRegistry()
    known.update(tenant, halted(*pairs))
    return known


@pytest.mark.parametrize(
    "pair",
    [
        (HaltScope.TENANT, "default"),
        (HaltScope.AGENT, "adviser-1"),
        (HaltScope.WORKFLOW, "analysis"),
        (HaltScope.MODEL, "scripted-1"),
        (HaltScope.MODEL, "scripted/scripted-1"),
        (HaltScope.MODEL, "scripted/*"),
    ],
)
def test_halt_problem_names_author_and_reason(pair: tuple[HaltScope, str]) -> None:
    problem = halts("default", pair).problem(asking().build())

    assert problem is not None
    assert problem.category is FailureKind.HALTED
    assert pair[1] in problem.description
    assert "ann" in problem.description
    assert "odd" in problem.description


@pytest.mark.parametrize(
    ("tenant", "pairs"),
    [
        ("default", []),
        ("default", [(HaltScope.AGENT, "adviser-2"), (HaltScope.WORKFLOW, "execution")]),
        ("acme", [(HaltScope.TENANT, "acme"), (HaltScope.WORKFLOW, "analysis")]),
    ],
)
def test_unrelated_request_is_not_halted(tenant: str, pairs: Iterable[tuple[HaltScope, str]]) -> None:
    assert halts(tenant, *pairs).problem(asking().build()) is None


def test_platform_halt_affects_every_tenant() -> None:
    known = halts(PLATFORM, (HaltScope.MODEL, "scripted-1"))

    assert known.problem(asking().build()) is not None
    assert known.problem(asking().with_tenant("acme").build()) is not None


def test_resumed_scope_runs_again() -> None:
    known = halts("default", (HaltScope.AGENT, "adviser-1"))

    known.update("default", TenantControls(version=2))

    assert known.problem(asking().build()) is None


@pytest.mark.parametrize("tenant", ["default", PLATFORM])
def test_closed_tenant_is_halted_until_updated(tenant: str) -> None:
    known = HaltRegistry()
    known.close(tenant, "the board is away")

    problem = known.problem(asking().build())
    other = known.problem(asking().with_tenant("acme").build())

    assert problem is not None
    assert (problem.category, problem.recoverable) == (FailureKind.HALTED, True)
    assert problem.description == f"it is not known what is halted for tenant {tenant}: the board is away"
    assert (other is not None) is (tenant == PLATFORM)
    assert not known.knows(tenant)
    known.update(tenant, TenantControls(version=1))
    assert known.knows(tenant)
    assert known.problem(asking().build()) is None


def test_reopened_tenant_keeps_previous_halts() -> None:
    known = halts("default", (HaltScope.AGENT, "adviser-2"))
    known.close("default", "unreadable")

    known.open("default")
    known.open("default")

    assert known.problem(asking().build()) is None
    assert known.problem(asking().with_agent("adviser-2", "adviser").build()) is not None


async def test_halt_ends_only_matching_waits() -> None:
    known = HaltRegistry()
    ended: list[str] = []
    has_ended = asyncio.Event()

    async def wait(envelope: LLMEnvelope) -> None:
        limit = asyncio.timeout(2)
        try:
            async with limit:
                with known.reached(envelope, limit):
                    await asyncio.Event().wait()
        except TimeoutError:
            ended.append(envelope.agent_id)
            has_ended.set()

    meant = asking().build()
    other = asking().with_agent("adviser-2", "adviser").build()
    async with asyncio.TaskGroup() as group:
        group.create_task(wait(meant))
        spared = group.create_task(wait(other))
        await asyncio.sleep(0)
        known.update("default", halted((HaltScope.AGENT, "adviser-1")))
        await has_ended.wait()
        spared.cancel()

    assert ended == ["adviser-1"]


RAISED = Halt(scope=HaltScope.MODEL, id="scripted/scripted-1", by="gateway", at=NOW, spares_in_flight=True)


async def test_raised_halt_is_immediate_and_stored_once() -> None:
    known, other, store = HaltRegistry(), HaltRegistry(), MemoryControlStore()

    assert (known.raise_halt("default", RAISED), known.raise_halt("default", RAISED)) == (True, False)
    other.raise_halt("default", RAISED.model_copy(update={"by": "another"}))
    assert known.problem(asking().build()) is not None
    assert known.problem(asking().with_tenant("acme").build()) is None

    stored = await store_raised_halts(store, known, "default")
    assert await store_raised_halts(store, other, "default") == []

    assert [(action.kind, action.id, action.by) for action in stored] == [("halt", RAISED.id, "gateway")]
    assert known.raised("default") == other.raised("default") == ()
    assert known.problem(asking().build()) is not None

    lifted = await execute_command(
        store, "default", RemoveHalt(RAISED.scope, RAISED.id), by="ann", why="", at=NOW
    )
    known.update("default", lifted)
    assert known.problem(asking().build()) is None


@pytest.mark.parametrize(("in_flight", "is_ended"), [(True, False), (False, True)])
async def test_raised_halt_spares_calls_in_flight(*, in_flight: bool, is_ended: bool) -> None:
    known, limit = HaltRegistry(), asyncio.timeout(None)
    async with limit:
        known.watch(asking().build(), limit, in_flight=in_flight)
        known.raise_halt("default", RAISED)
        is_due = limit.when() is not None
        limit.reschedule(None)
        known.forget(limit)

    assert is_due is is_ended
    assert (known.problem(asking().build(), in_flight=in_flight) is not None) is is_ended


def test_stored_halt_keeps_in_flight_exemption() -> None:
    assert Halt.model_validate_json(RAISED.model_dump_json()) == RAISED
    assert "spares_in_flight" not in RAISED.model_copy(update={"spares_in_flight": False}).model_dump_json()


def test_halts_are_counted_by_scope() -> None:
    known = halts("default", (HaltScope.AGENT, "a"), (HaltScope.AGENT, "b"))
    known.raise_halt("default", Halt(scope=HaltScope.MODEL, id="m", by="gateway", why="", at=NOW))

    assert dict(known.counts("default")) == {
        HaltScope.TENANT: 0,
        HaltScope.AGENT: 2,
        HaltScope.WORKFLOW: 0,
        HaltScope.MODEL: 1,
        HaltScope.ENTRIES: 0,
    }
    assert set(known.counts("unknown").values()) == {0}
