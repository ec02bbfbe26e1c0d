"""A limit on calls: the session goes on without asking, says so, and comes out again byte for byte."""

from decimal import Decimal
from pathlib import Path

import pytest

from agentic_trading.desk.session.replay import replay
from agentic_trading.governance.control_stores.file import FileControlStore
from agentic_trading.llm.limits import NANO
from tests.flows.sessions import FAULTS, calls_in, decided, kept_in, ran


@pytest.mark.parametrize("workers", [1, 8])
async def test_sent_calls_never_exceed_max_calls(workers: int, tmp_path: Path) -> None:
    report = await ran(tmp_path, max_calls=7, workers=workers)

    assert (report.sent, report.max_calls) == (7, 7)
    assert report.no_decisions["analysis"]["budget_exhausted"] > 0
    assert report.data[0].bars == 600


async def test_retries_count_as_calls(tmp_path: Path) -> None:
    report = await ran(tmp_path, max_calls=9, inject=FAULTS)

    sent = [call for call in calls_in(await kept_in(report.log)) if call.result.dispatched_at is not None]
    assert len(sent) == report.sent == 9
    assert any(call.result.attempt_number > 1 for call in sent)


async def test_call_refusal_names_the_limit(tmp_path: Path) -> None:
    report = await ran(tmp_path, max_calls=1)

    refused = [call.result for call in calls_in(await kept_in(report.log)) if not call.result.dispatched_at]
    assert refused
    assert all(r.failure and "0 calls left" in r.failure.description for r in refused)


async def test_limited_session_replays_byte_for_byte(tmp_path: Path) -> None:
    report = await ran(tmp_path, max_calls=7, inject=FAULTS)

    assert (await replay(tmp_path, workers=1)).identical
    assert (await replay(tmp_path, workers=8)).identical
    recorded = await ran(tmp_path / "again", provider="recorded", recorded_from=tmp_path)
    assert recorded.digest == report.digest
    assert decided(tmp_path / "again") == decided(tmp_path)


async def test_resumed_run_counts_earlier_calls(tmp_path: Path) -> None:
    first = await ran(tmp_path, max_calls=5, bars=450)

    second = await ran(tmp_path, max_calls=8, resume=True)

    assert first.sent == 5
    assert second.sent == 8
    assert (await replay(tmp_path)).identical


async def test_resumed_run_keeps_unspecified_budget(tmp_path: Path) -> None:
    await ran(tmp_path, max_calls=5, bars=450, budget_usd=Decimal("0.25"))

    await ran(tmp_path, max_calls=8, resume=True)

    (limit,) = (await FileControlStore(tmp_path).read("default")).limits
    assert (limit.nusd, limit.calls) == (NANO // 4, 8)


async def test_unreached_limit_does_not_change_decisions(tmp_path: Path) -> None:
    free, limited = await ran(tmp_path / "free"), await ran(tmp_path / "limited", max_calls=10_000)

    assert decided(tmp_path / "free") == decided(tmp_path / "limited")
    assert free.max_calls is None
    assert "budget_exhausted" not in limited.no_decisions.get("analysis", {})
