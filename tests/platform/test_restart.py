"""A platform remembers by its folder: what was spent, what operators ordered, what was never ended; and it is alone there."""

import asyncio
from decimal import Decimal
from pathlib import Path

import pytest

from agentic_trading.governance.commands import AddHalt, SetLimit, execute_command
from agentic_trading.governance.control_stores.file import FileControlStore
from agentic_trading.governance.controls_document import HaltScope
from agentic_trading.governance.events import AttemptDispatched
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.status_feed import FileStatusFeed
from agentic_trading.llm import (
    DeterminismLevel,
    EnvelopeBuilder,
    Event,
    FailureKind,
    JsonFileInteractionStore,
    LLMEnvelope,
    LLMProvider,
    StoreError,
    StoreLockedError,
)
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.platform import (
    ConfigError,
    Platform,
    PlatformConfig,
    Ports,
    ProviderConfig,
    ProviderContext,
    local_gateway,
)
from agentic_trading.worker.active_claim import RecoveryReport
from tests.gateway import START
from tests.platform.calls import BUDGET_USD, SMALL_USD, asked, envelope, scripted, spent_nusd

HALT_OF_BAD = AddHalt(HaltScope.AGENT, "bad")


async def test_spending_of_earlier_starts_counts(tmp_path: Path) -> None:
    outcomes = []
    for start in range(3):
        async with local_gateway(scripted(), folder=tmp_path, budget_usd=SMALL_USD) as platform:
            outcomes.append(await asked(platform, *(envelope(100 * start + n) for n in range(10))))

    assert [outcome.count(None) for outcome in outcomes] == [3, 0, 0]
    assert outcomes[2] == [FailureKind.BUDGET_EXHAUSTED] * 10
    assert await spent_nusd(tmp_path / "interactions.jsonl") == 3 * 212_000


async def test_given_store_keeps_earlier_spending(tmp_path: Path) -> None:
    answered = []
    for start in range(3):
        store = JsonFileInteractionStore(tmp_path / "log.jsonl")
        async with local_gateway(scripted(), store=store, budget_usd=SMALL_USD) as platform:
            answered.append(
                (await asked(platform, *(envelope(100 * start + n) for n in range(10)))).count(None)
            )
        await store.aclose()

    assert answered == [3, 0, 0]


async def test_halt_reaches_embedded_platform_within_second(tmp_path: Path) -> None:
    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD) as platform:
        assert await asked(platform, envelope(1)) == [None]
        await execute_command(
            FileControlStore(tmp_path),
            "default",
            AddHalt(HaltScope.TENANT, "default"),
            by="ann",
            why="",
            at=START,
        )
        async with asyncio.timeout(1):
            n = 2
            while await asked(platform, envelope(n)) == [None]:
                n += 1
        assert await asked(platform, envelope(1000)) == [FailureKind.HALTED]


async def test_halt_holds_from_first_call_after_restart(tmp_path: Path) -> None:
    halt = AddHalt(HaltScope.TENANT, "default")
    await execute_command(FileControlStore(tmp_path), "default", halt, by="ann", why="", at=START)

    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD) as platform:
        assert await asked(platform, envelope()) == [FailureKind.HALTED]


async def test_operator_limit_precedes_configured_limit(tmp_path: Path) -> None:
    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD) as platform:
        assert await asked(platform, envelope(1)) == [None]
    nothing = Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=0)
    await execute_command(
        FileControlStore(tmp_path), "default", SetLimit(nothing), by="ann", why="", at=START
    )

    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD) as platform:
        assert await asked(platform, envelope(2)) == [FailureKind.BUDGET_EXHAUSTED]


@pytest.mark.parametrize("by", ["configuration", "operator"])
async def test_lost_controls_are_restored_from_log(tmp_path: Path, by: str) -> None:
    board, statuses = FileControlStore(tmp_path), FileStatusFeed(tmp_path)
    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD) as platform:
        if by == "operator":
            lower = SetLimit(Limit(ScopeKind.TENANT, ANY, Window.NONE, calls=1))
            await execute_command(board, "default", lower, by="ann", why="", at=START)
        known = await execute_command(board, "default", HALT_OF_BAD, by="ann", why="", at=START)
        async with asyncio.timeout(10):
            while not any(one.limits_version >= known.version for one in await statuses.read("default")):
                await asked(platform, envelope())
                await asyncio.sleep(0.01)
    for path in await asyncio.to_thread(lambda: list(tmp_path.glob("controls-*.json"))):
        await asyncio.to_thread(path.unlink)

    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD):
        found = await board.read("default")

    assert (found.limits, found.halts) == (known.limits, known.halts)


async def test_changed_configured_limit_takes_effect(tmp_path: Path) -> None:
    for budget_usd, kind in (("0", FailureKind.BUDGET_EXHAUSTED), ("0.1", None)):
        async with local_gateway(scripted(), folder=tmp_path, budget_usd=Decimal(budget_usd)) as platform:
            assert await asked(platform, envelope()) == [kind]


async def test_folder_is_used_by_single_platform(tmp_path: Path) -> None:
    first = PlatformConfig(folder=tmp_path, name="desk-a")

    async with Platform(first):
        with pytest.raises(StoreError, match="another platform is open in it"):
            async with Platform(PlatformConfig(folder=tmp_path, name="desk-b")):
                pass
    async with Platform(PlatformConfig(folder=tmp_path, name="desk-b")):
        pass


async def test_log_is_written_by_single_platform(tmp_path: Path) -> None:
    store = JsonFileInteractionStore(tmp_path / "interactions.jsonl")
    await store.open()

    with pytest.raises(StoreLockedError):
        async with Platform(PlatformConfig(folder=tmp_path)):
            pass
    await store.aclose()
    async with Platform(PlatformConfig(folder=tmp_path)):
        pass


async def test_lost_call_is_in_doubt_and_retried(
    tmp_path: Path,
) -> None:
    asked = envelope(7)
    dispatched = AttemptDispatched(
        attempt=1,
        request_hash=asked.request_hash,
        provider="scripted",
        model="scripted-1",
        reservation_id=f"default:{asked.idempotency_key}:1",
        scopes={ScopeKind.CALL: asked.idempotency_key, ScopeKind.TENANT: "default"},
        reserved_nusd=46_904_000,
        reserved_tokens=5_000,
    )
    store = JsonFileInteractionStore(tmp_path / "interactions.jsonl")
    await store.record(
        dispatched.as_event(
            event_id="d-1",
            trace_id=asked.trace_id,
            tenant_id="default",
            time=START,
            causation_id=asked.envelope_id,
        )
    )
    await store.aclose()

    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD) as platform:
        assert platform.recovery == RecoveryReport(1, 1, 46_904_000)
        outcome = await platform.ask_structured(asked)
        refused = await asked_until_refused(platform)

    assert [(one.number, one.in_doubt, one.cost_nusd) for one in outcome.attempts] == [
        (1, True, 46_904_000),
        (2, False, 212_000),
    ]
    assert outcome.ok
    assert refused == FailureKind.BUDGET_EXHAUSTED
    assert await spent_nusd(tmp_path / "interactions.jsonl") <= int(BUDGET_USD * NANO)


async def kinds_of_events(folder: Path) -> list[str]:
    records = JsonlRecords(folder / "interactions.jsonl")
    kinds = [entry.record.kind async for entry in records.scan() if isinstance(entry.record, Event)]
    await records.aclose()
    return kinds


async def asked_until_refused(platform: Platform) -> FailureKind | None:
    """Ask until nothing more is answered, and return why."""
    for n in range(1000, 1100):
        (kind,) = await asked(platform, envelope(n))
        if kind is not None:
            return kind
    return None


def broken(_context: ProviderContext) -> ScriptedProvider:
    """An adapter that cannot be made."""
    raise OSError("no such device")


async def test_failed_opening_closes_opened_resources(tmp_path: Path) -> None:
    failing = PlatformConfig(
        folder=tmp_path, providers={"house": ProviderConfig(adapter=f"{__name__}:broken")}
    )

    with pytest.raises(
        ConfigError, match=r"house\.adapter is .*broken, which cannot be created \(OSError: no such device"
    ):
        async with Platform(failing):
            pass

    async with local_gateway(scripted(), folder=tmp_path, budget_usd=BUDGET_USD) as platform:
        assert await asked(platform, envelope()) == [None]
    kinds = await kinds_of_events(tmp_path)
    assert kinds[:3] == ["run.started", "run.ended", "run.started"]
    assert kinds[-1] == "run.ended"


async def test_folder_reopens_after_platform_closes(tmp_path: Path) -> None:
    for _ in range(2):
        async with Platform(
            PlatformConfig(folder=tmp_path, name="desk"), Ports(providers={"scripted": scripted()})
        ) as one:
            assert await asked(one, envelope()) == [None]


async def test_recorded_answer_is_reused_after_restart(tmp_path: Path) -> None:
    def the_same() -> LLMEnvelope:
        builder = EnvelopeBuilder().for_general().with_instructions("Advise.").with_as_of(START)
        builder.with_determinism(DeterminismLevel.RECORDED)
        return builder.with_provider(LLMProvider.SCRIPTED, "scripted-1").build()

    first, second = scripted(), scripted()
    for provider in (first, second):
        async with local_gateway(provider, folder=tmp_path, budget_usd=BUDGET_USD) as platform:
            assert await asked(platform, the_same()) == [None]

    assert (len(first.requests), len(second.requests)) == (1, 0)
    assert [kind for kind in await kinds_of_events(tmp_path) if kind.startswith("attempt.")] == [
        "attempt.dispatched"
    ]
