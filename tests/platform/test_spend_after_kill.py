"""`spend` and the ledger agree after a process was killed with calls in flight."""

import asyncio
import json
import signal
from contextlib import aclosing
from pathlib import Path

import pytest

from agentic_trading.audit.spend import SpendReport, spend_report
from agentic_trading.cli.look import spend_command
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from tests.forked import ended
from tests.logging_kept import logging_kept
from tests.platform import killed_in_calls
from tests.platform.killed_in_calls import ANSWERED, IN_FLIGHT, REFUSED
from tests.redis_server import RealServer

pytestmark = pytest.mark.timeout(60)  # a program of its own takes a second to start


async def sums(log: Path) -> SpendReport:
    async with aclosing(JsonlRecords(log)) as records:
        return await spend_report(records, "agent", "model")


async def test_spend_matches_ledger_after_kill(
    tmp_path: Path, own_redis: RealServer, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = await asyncio.to_thread(
        ended, killed_in_calls.main, tmp_path / "desk", own_redis.url, folder=tmp_path
    )
    assert killed.code == -signal.SIGKILL, killed.err
    log = tmp_path / "desk" / "desk-a" / "interactions.jsonl"
    report = await sums(log)

    async with killed_in_calls.platform(tmp_path / "desk", own_redis.url) as again:
        assert again.recovery.in_doubt == IN_FLIGHT
    server = await asyncio.to_thread(RedisLedger, own_redis.url)
    async with aclosing(server):
        totals = [one for one in await server.balances("default") if one.scope is ScopeKind.TENANT]
        (tenant,) = [one for one in totals if one.window is Window.NONE]

    total = report.total
    assert (total.attempts, total.refused, total.in_doubt) == (ANSWERED + IN_FLIGHT, REFUSED, IN_FLIGHT)
    assert total.failed == IN_FLIGHT
    assert tenant.spent.calls == total.attempts
    assert total.cost_nusd == tenant.spent.nusd > total.in_doubt_nusd > 0
    assert (await sums(log)).total == total
    assert {row.key for row in report.rows} == {("", "scripted-1")}
    with logging_kept():
        await asyncio.to_thread(spend_command, by="", store=[log], as_json=True)
    assert json.loads(capsys.readouterr().out)["total"]["in_doubt_nusd"] == total.in_doubt_nusd
