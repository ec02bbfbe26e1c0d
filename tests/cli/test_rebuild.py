"""`budget rebuild`: logs and a real server joined call by call, the difference first, and what it refuses."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.governance.ledger import Balance, Ledger
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.llm import Event, JsonFileInteractionStore
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.result import AttemptTrace, Stage
from agentic_trading.llm.store import Record
from agentic_trading.platform.port_adapters import ledger_of
from tests.build import NOW, envelope, event, interaction
from tests.cli.conftest import Command
from tests.contracts.records_opening import put
from tests.governance.asking import ask, reserved, select, spend
from tests.redis_server import RealServer

KEYS = ("first", "second", "third")


@pytest.fixture
def server(own_redis: RealServer, monkeypatch: pytest.MonkeyPatch) -> RealServer:
    """Give an empty server, the one that the configuration names."""
    monkeypatch.setenv("AGENTIC_LEDGER_URL", own_redis.url)
    return own_redis


def answered(key: str, nusd: int) -> LLMInteraction:
    """Return a call that was answered."""
    return interaction(
        envelope=envelope(
            idempotency_key=key,
            envelope_id=f"e-{key}",
            trace_id="trace-1",
            agent_id="agent-1",
            workflow="analysis",
        ),
        dispatched_at=NOW,
        finished_at=NOW,
        cost_nusd=nusd,
        reading=AttemptTrace(parser="p", transport="prompted", verdict=Stage.DONE),
        reservation_id=f"default:{key}:1",
    )


def written(log: Path, *records: Record) -> Path:
    """Return a log with these records."""

    async def write() -> None:
        async with aclosing(JsonFileInteractionStore(log)) as store:
            await put(store, records)

    asyncio.run(write())
    return log


def at_server(server: RealServer, *steps: Callable[[Ledger], Awaitable[object]]) -> None:
    """Take steps at the ledger of a server."""

    async def take() -> None:
        async with aclosing(await asyncio.to_thread(ledger_of, server.url)) as ledger:
            for step in steps:
                await step(ledger)

    asyncio.run(take())


async def charge(ledger: Ledger, *keys: str) -> None:
    """Charge a call of 100 for each of these keys."""
    for key in keys:
        await spend(ledger, ask(100, tokens=120, key=key, tenant="default"))


def total(server: RealServer) -> Balance:
    """Return what the tenant has used in all."""
    found: list[Balance] = []

    async def look(ledger: Ledger) -> None:
        found.extend(select(await ledger.balances("default"), ScopeKind.TENANT, "default", Window.NONE))

    at_server(server, look)
    return found[0]


async def long_over(ledger: Ledger) -> None:
    """Have nothing ended so lately that its record may be on its way."""
    assert isinstance(ledger, RedisLedger)
    ended = ledger._tenants.of("default").keys.shared[8]
    await ledger._server._redis.delete(ended)


async def too_old(ledger: Ledger, *keys: str) -> None:
    """Have calls that ended too long ago to be known one by one."""
    assert isinstance(ledger, RedisLedger)
    ids = [f"default:{key}:1" for key in keys]
    calls = ledger._tenants.of("default").keys.with_calls(ids)[-len(ids) :]
    assert await ledger._server._redis.delete(*calls) == len(ids)


def test_rebuild_keeps_calls_missing_from_logs(command: Command, server: RealServer, tmp_path: Path) -> None:
    log = written(tmp_path / "log.jsonl", answered("first", 100), answered("second", 40), answered("new", 7))
    at_server(server, lambda ledger: charge(ledger, *KEYS), long_over)

    done = command("budget", "rebuild", "--store", log)
    told = json.loads(command("budget", "rebuild", "--store", log, "--json").out)

    said = " ".join(done.out.split())
    assert done.code == ExitCode.DONE
    assert (
        "kept default:second:1: 0.0000001 USD, 120 tokens, 1 call (in the logs: 0.00000004 USD, 120 tokens, 1 call)"
        in said
    )
    assert "kept default:third:1: 0.0000001 USD, 120 tokens, 1 call (in the logs: nothing)" in said
    assert "default:first:1" not in said
    assert total(server).spent == Amount(307, 480, 4)
    assert (told["knew_nusd"], told["charged_nusd"], told["discarded"]) == (307, 307, [])
    assert {
        one["reservation_id"]: (one["charged"]["nusd"], one["logged"]["nusd"]) for one in told["kept"]
    } == {
        "default:second:1": (100, 40),
        "default:third:1": (100, 0),
    }


def test_only_discard_server_lowers_the_total(command: Command, server: RealServer, tmp_path: Path) -> None:
    log = written(tmp_path / "log.jsonl", answered("first", 60))
    at_server(server, lambda ledger: charge(ledger, *KEYS), long_over)

    kept = command("budget", "rebuild", "--store", log)
    before = total(server)
    lowered = command("budget", "rebuild", "--store", log, "--discard-server")

    assert (kept.code, lowered.code) == (ExitCode.DONE, ExitCode.DONE)
    assert before.spent.nusd == 300
    assert "tenant default 0.0000003 USD instead of 0.00000006 USD" in " ".join(lowered.out.split())
    assert "kept" not in " ".join(lowered.out.split())
    assert total(server).spent == Amount(60, 120, 1)


def test_sums_missing_from_logs_are_refused(command: Command, server: RealServer, tmp_path: Path) -> None:
    log = written(tmp_path / "log.jsonl", answered("first", 100))
    rest = written(tmp_path / "rest.jsonl", answered("second", 100), answered("third", 100))
    at_server(
        server,
        lambda ledger: charge(ledger, *KEYS),
        lambda ledger: too_old(ledger, "first", "third"),
        long_over,
    )

    refused = command("budget", "rebuild", "--store", log)
    unchanged = total(server)
    whole = command("budget", "rebuild", "--store", log, "--store", rest)

    assert (refused.code, refused.out) == (ExitCode.BAD_INPUT, "")
    assert "tenant default 0.0000003 USD instead of 0.0000002 USD" in refused.err
    assert "--discard-server" in refused.err
    assert whole.code == ExitCode.DONE
    assert unchanged.spent == total(server).spent == Amount(300, 360, 3)


def test_log_settles_call_in_flight(command: Command, server: RealServer, tmp_path: Path) -> None:
    log = written(tmp_path / "log.jsonl", answered("first", 60))

    async def fly(ledger: Ledger) -> None:
        for key in KEYS[:2]:
            await ledger.dispatch(await reserved(ledger, ask(100, key=key, tenant="default")))

    at_server(server, fly)
    done = command("budget", "rebuild", "--store", log)

    found = total(server)
    assert done.code == ExitCode.DONE
    assert (found.spent, found.held) == (Amount(60, 120, 1), Amount(100, 0))


def of_a_newer_release(kind: str = "budget.adjusted") -> Event:
    return event(kind, id="e-1", trace_id="t", body={"nusd": 70})


@pytest.mark.parametrize("words", [("rebuild",), ("history",)])
def test_log_of_newer_release_is_refused(
    words: tuple[str, ...], command: Command, server: RealServer, tmp_path: Path
) -> None:
    log = written(tmp_path / "log.jsonl", answered("first", 60), of_a_newer_release())
    at_server(server, lambda ledger: charge(ledger, *KEYS), long_over)
    before = total(server)

    told = command("budget", *words, "--store", log)

    assert (told.code, told.out) == (ExitCode.LOG_UNUSABLE, "")
    assert told.err.startswith(f"Error: {log}:2: event e-1 of kind budget.adjusted: the kind is unknown")
    assert "Known kinds: attempt.answered_late, attempt.dispatched, " in told.err
    assert total(server) == before


def test_trace_shows_event_of_newer_release(command: Command, tmp_path: Path) -> None:
    log = written(tmp_path / "log.jsonl", of_a_newer_release())

    told = command("trace", "show", "t", "--store", log)

    assert told.code == ExitCode.DONE
    assert "budget.adjusted" in told.out


def test_application_kinds_are_skipped_by_rebuild(
    command: Command, server: RealServer, tmp_path: Path
) -> None:
    log = written(tmp_path / "log.jsonl", answered("first", 60), of_a_newer_release("risk.reviewed"))

    assert command("budget", "rebuild", "--store", log).code == ExitCode.DONE
    assert total(server).spent.nusd == 60
