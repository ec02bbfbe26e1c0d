"""Limits on the cost of questions: refused questions, exact accounting, replay, resume, and other limits."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk import Bar, Desk, Economics
from agentic_trading.desk.economics import CostOfQuestions
from agentic_trading.desk.exchange import Fill
from agentic_trading.desk.inference import InferenceRate
from agentic_trading.desk.instrument import Side
from agentic_trading.desk.session.options import RunOptions, load_run_config
from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.report import RunReport
from agentic_trading.desk.session.run import run_session
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.store import LOG_NAME
from agentic_trading.operate.session_folder import SessionFolder
from agentic_trading.platform.errors import OptionError
from tests.desk.agents.trading import Asking, answers_of, facts, named, played
from tests.flows.sessions import (
    LOADED,
    PRICED,
    Priced,
    calls_in,
    decided,
    evening,
    events_in,
    kept_in,
    lines_of,
    with_faults,
)
from tests.flows.test_own_agents import OWN

FAULTS = "malformed=20%,timeout=10%"
ZONE = "Asia/Tokyo"
FREE = Decimal("0.0008")
"""About half of the cost of the session."""

pytestmark = pytest.mark.timeout(120)


class Frugal(Asking):
    """Asks within a limit of its own, and closes its position at each fourth hour without a question."""

    def economics(self) -> Economics:
        return Economics(max_share_of_pnl=Decimal("0.5"), free=FREE)

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        if bar.close_time.hour % 4 == 0:
            desk.close()
        else:
            await super().on_bar(desk, bar)


async def ran(out: Path, limits: str = "", *, bars: int = 400, **changes: Any) -> RunReport:
    """Run `Frugal` with a priced model and limits of the operator."""
    file = out.parent / "desk.toml"
    text = f'zone = "{ZONE}"\n{OWN}\n[economics]\n{limits}\n'
    await asyncio.to_thread(file.write_text, text, encoding="utf-8")
    config = await asyncio.to_thread(load_run_config, file)
    terms: dict[str, Any] = {"data": ("btcusdt-5m",), "seed": "3", "agent": await named(Frugal), **changes}
    options = RunOptions(config=config, provider="config", out=out, bars=bars, record=True, **terms)
    return await run_session(options, on_progress=lambda _progress: None)


def asked_at(call: LLMInteraction) -> datetime:
    assert call.envelope.as_of is not None
    return call.envelope.as_of


async def refusals(out: Path) -> list[tuple[datetime, str]]:
    """Return the refused questions: their close and the reason."""
    events = events_in(await kept_in(out / LOG_NAME), "agent.undecided")
    return [
        (each.as_of, each.body["reason"]["description"])
        for each in events
        if each.as_of and each.body["reason"]["category"] == "budget_exhausted"
    ]


async def test_question_beyond_a_limit_is_not_asked(tmp_path: Path) -> None:
    report = await ran(tmp_path / "out", inject=FAULTS)

    refused = await refusals(tmp_path / "out")
    calls = calls_in(await kept_in(tmp_path / "out" / LOG_NAME))
    first, why = refused[0]
    last = max(asked_at(call) for call in calls)
    before = sum(call.result.cost_nusd for call in calls if asked_at(call) < last)
    cost = sum(call.result.cost_nusd for call in calls)
    assert any(call.result.attempt_number > 1 for call in calls)
    assert last < first
    assert cost >= FREE * NANO > before
    assert why.startswith(f"questions cost {Decimal(cost) / NANO:f}, and the limit is 0.5 of a P&L of ")
    assert report.no_decisions["agent"]["budget_exhausted"] == len(refused)
    fills = events_in(await kept_in(tmp_path / "out" / LOG_NAME), Fill.KIND)
    sold = [each.as_of for each in fills if each.body["side"] == Side.SELL and each.as_of]
    assert max(sold) > first


async def test_replay_refuses_the_same_questions(tmp_path: Path) -> None:
    await ran(tmp_path / "out", inject=FAULTS)

    for workers in (1, 8):
        again = await replay(tmp_path / "out", workers=workers, agent=await named(Frugal))
        assert (again.identical, again.misses, again.unused) == (True, 0, 0)


@pytest.mark.parametrize("bars", [120, 250])
async def test_resumed_run_refuses_the_same_questions(bars: int, tmp_path: Path) -> None:
    await ran(tmp_path / "whole", inject=FAULTS)
    await ran(tmp_path / "parts", bars=bars, inject=FAULTS)
    await ran(tmp_path / "parts", inject=FAULTS, resume=True)

    assert lines_of(decided(tmp_path / "parts")) == lines_of(decided(tmp_path / "whole"))
    with pytest.raises(OptionError, match=r"\[economics\]"):
        await ran(tmp_path / "parts", "free = 3\nmax_share_of_pnl = 1", inject=FAULTS, resume=True)


async def test_limit_of_operator_holds_beside_that_of_agent(tmp_path: Path) -> None:
    await ran(tmp_path / "own", inject=FAULTS)
    await ran(tmp_path / "narrower", "max_pct_of_equity_per_day = 4e-7", inject=FAULTS)
    await ran(tmp_path / "wider", "max_share_of_pnl = 1\nfree = 100", inject=FAULTS)

    own, narrower, wider = [await refusals(tmp_path / name) for name in ("own", "narrower", "wider")]
    assert own == wider != narrower
    assert {why.partition(" cost")[0] for _, why in narrower} == {"questions of the day"}
    assert narrower[0][0] < own[0][0]
    manifest = await asyncio.to_thread(SessionFolder(tmp_path / "narrower").read_manifest)
    assert manifest.economics.on_record == {"max_pct_of_equity_per_day": "4E-7", "free": "0"}


async def test_shipped_analyst_counts_all_attempts() -> None:
    limits = Economics(max_share_of_pnl=Decimal(0), free=Decimal("0.05"))
    bars = {"btcusdt-5m": LOADED["btcusdt-5m"]}
    terms: dict[str, Any] = {"model": PRICED, "bars": bars, "symbols": ["BTCUSDT"], "most_bars": 1_500}
    session = await evening(with_faults(Priced(), "malformed=60%"), economics=limits, **terms)

    undecided = await facts(session, "analysis.undecided")
    refused = [each for each in undecided if each.body["reason"]["category"] == "budget_exhausted"]
    calls = calls_in(await session.records())
    analysis = [call for call in calls if call.envelope.workflow == "analysis"]
    assert refused
    first = refused[0].as_of
    assert first is not None
    cost = sum(call.result.cost_nusd for call in calls if asked_at(call) < first)
    assert refused[0].body["reason"]["description"].startswith(f"questions cost {Decimal(cost) / NANO:f},")
    assert max(call.result.attempt_number for call in analysis) > 1
    assert all(asked_at(call) < first for call in analysis)


async def test_session_without_limits_asks_all_questions() -> None:
    agent = Asking()
    plain = await played(agent, most_bars=120)
    wide = await played(
        Asking(),
        answers_of(agent),
        most_bars=120,
        economics=Economics(max_share_of_pnl=Decimal(1), free=Decimal(9)),
    )

    assert wide.digest == plain.digest


closes = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 10**9), st.integers(-500, 1_500)), min_size=1, max_size=30
)


@given(
    closes=closes,
    percent=st.none() | st.decimals("0.001", 1, places=3),
    share=st.none() | st.decimals(0, 1, places=2),
    free=st.integers(0, 3),
)
def test_cost_is_compared_as_documented(
    closes: Sequence[tuple[int, int, int]], percent: Decimal | None, share: Decimal | None, free: int
) -> None:
    limits = Economics(max_pct_of_equity_per_day=percent, max_share_of_pnl=share, free=Decimal(free))
    cost = CostOfQuestions(limits, InferenceRate("USDT", Decimal(2)), ZoneInfo(ZONE), Decimal(1_000))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    history: list[tuple[Any, Decimal, Decimal]] = []  # day, cost and equity of each close
    for hours, nusd, equity in closes:
        at += timedelta(hours=hours)
        day = at.astimezone(ZoneInfo(ZONE)).date()
        cost.begin(at)

        spent = sum((each for _, each, _ in history), Decimal(0))
        last = history[-1][2] if history else Decimal(1_000)
        earlier = [each for of, _, each in history if of != day]
        today = sum((each for of, each, _ in history if of == day), Decimal(0))
        base = max((earlier or [Decimal(1_000)])[-1], Decimal(0))
        is_over_day = percent is not None and today >= base * percent / 100
        is_over_share = share is not None and spent >= max(Decimal(free), share * (last - 1_000))
        assert bool(cost.problem) == (is_over_day or is_over_share)

        cost.add(nusd)
        cost.end(Decimal(1_000 + equity))
        history.append((day, Decimal(nusd) * 2 / NANO, Decimal(1_000 + equity)))
