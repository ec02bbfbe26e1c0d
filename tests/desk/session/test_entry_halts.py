"""Loss limits halt the entries of a session, and let exits through until they are resumed."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.desk import Agent, Bar, Desk, RiskLimits
from agentic_trading.desk.exchange import Cancellation, Fill
from agentic_trading.desk.execution.entry_halt import OperatorResume
from agentic_trading.desk.instrument import Side
from agentic_trading.desk.report.assumptions import ReportTerms
from agentic_trading.desk.report.page import page_of
from agentic_trading.desk.report.record import read_run
from agentic_trading.desk.session.agents import load_agent
from agentic_trading.desk.session.entry_resumes import RecordedResumes
from agentic_trading.desk.session.replay import replay
from agentic_trading.operate.budgets import BudgetLocationOptions, execute, read_status, resume_command
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.errors import OptionError
from agentic_trading.trading_limits import LossLimits
from tests.desk.agents.trading import facts, played
from tests.desk.market.bars import MONDAY, bar
from tests.flows.sessions import Evening, csv_of, decided, events_in, kept_in, options, ran, write

FIVE = timedelta(minutes=5)


def walk(closes: Sequence[int], first: int = 0) -> dict[str, list[Bar]]:
    """Return bars with these closes. Each opens at the close before it, so that orders are filled there."""
    opens = [1000, *closes]
    made = [
        bar(first + place, opens[place], close=close, volume=10_000) for place, close in enumerate(closes)
    ]
    return {"walk": made}


class Buying(Agent):
    """Buys for 9,000 at each close, and closes its position at the closes in `leaves`."""

    limits: LossLimits = LossLimits()

    def __init__(self, leaves: Sequence[int] = (), **config: Any) -> None:
        super().__init__(**config)
        self.leaves = leaves
        self.equities: list[Decimal] = []
        self.reports: list[Fill | Cancellation] = []

    def risk_limits(self, symbols: Sequence[str]) -> RiskLimits:
        wide = {"price_collar_bps": Decimal(9_999), "max_tick_bps": Decimal(9_999)}
        return super().risk_limits(symbols).narrowed_to(self.limits).model_copy(update=wide)

    async def on_fill(self, desk: Desk, report: Fill | Cancellation) -> None:
        self.reports.append(report)

    async def on_close(self, desk: Desk) -> None:
        self.equities.append(desk.equity)
        if len(self.equities) in self.leaves:
            desk.close()
        else:
            desk.buy(notional=9_000)


async def traded(agent: Agent, closes: Sequence[int], **changes: Any) -> Evening:
    return await played(agent, **{"bars": walk(closes), "symbols": ["BTCUSDT"], **changes})


async def halts(evening: Evening) -> list[tuple[str, str, int]]:
    """Return the changes of entries: what, which rules, and at which close."""
    found = await facts(evening, "risk.tripped", "risk.resumed")
    changes = [
        (
            each.kind.removeprefix("risk."),
            each.body.get("rule") or ",".join(each.body["rules"]),
            round((each.as_of - MONDAY) / FIVE),
        )
        for each in found
        if each.as_of is not None
    ]
    return sorted(changes, key=lambda change: change[2])


def first_reached(
    equities: Sequence[Decimal], percent: Decimal, rule: str, days: Sequence[datetime]
) -> int | None:
    """Return the first close, from 1, at which a limit is reached, by the definition of its base."""
    for number, equity in enumerate(equities):
        until = equities[: number + 1]
        match rule:
            case "max_loss_pct":
                base = until[0]
            case "max_drawdown_pct":
                base = max(until)
            case _:
                today = [each for each, day in zip(until, days, strict=False) if day == days[number]]
                before = until[: len(until) - len(today)]
                base = before[-1] if before else until[0]
        if equity <= base - base * percent / 100:
            return number + 1
    return None


@given(
    st.lists(st.integers(600, 1_400), min_size=2, max_size=25),
    st.sampled_from(["max_loss_pct", "max_daily_loss_pct", "max_drawdown_pct"]),
    st.integers(1, 60),
    st.integers(270, 290),
)
def test_limit_is_reached_at_its_floor_and_never_above(
    closes: list[int], rule: str, tenths: int, first: int
) -> None:
    percent = Decimal(tenths) / 10
    agent = Buying(leaves=range(20, 30))
    agent.limits = LossLimits.model_validate({rule: percent})
    evening = asyncio.run(traded(agent, closes, bars=walk(closes, first)))
    days = [(MONDAY + (first + place) * FIVE).date() for place in range(len(closes))]

    async def read() -> tuple[list[tuple[str, str, int]], list[Any], list[Any]]:
        intents = await facts(evening, "intent.approved")
        return await halts(evening), intents, await facts(evening, "intent.denied")

    changes, intents, denied = asyncio.run(read())
    expected = first_reached(agent.equities, percent, rule, days)  # type: ignore[arg-type]
    assert changes == ([] if expected is None else [("tripped", rule, first + expected)])
    halted_from = MONDAY + (first + (expected or len(closes) + 1)) * FIVE
    assert all(each.as_of < halted_from for each in intents if each.body["kind"] == "entry")
    halting = [each for each in denied if each.body["rule"] == rule]
    assert all(each.as_of >= halted_from for each in halting)
    assert bool(halting) == (expected is not None and expected < 20)
    assert not any(each.body["side"] == "sell" for each in denied)


class Resting(Buying):
    """Has one position and one order that waits far below the price."""

    async def on_close(self, desk: Desk) -> None:
        self.equities.append(desk.equity)
        if len(self.equities) == 1:
            desk.buy(notional=50_000)
            desk.buy(notional=10_000, limit=500)
        if len(self.equities) == 6:
            desk.close()


async def test_unfilled_entries_are_withdrawn_and_exit_passes() -> None:
    agent = Resting()
    agent.limits = LossLimits(max_loss_pct=Decimal(1))
    evening = await traded(agent, [1000, 1000, 990, 970, 960, 960, 950, 400, 400])

    assert await halts(evening) == [("tripped", "max_loss_pct", 4)]
    (ended,) = [each for each in agent.reports if isinstance(each, Cancellation)]
    assert (ended.time, ended.reason) == (MONDAY + 4 * FIVE, "requested")
    (sold,) = [each for each in agent.reports if isinstance(each, Fill) and each.side is Side.SELL]
    assert sold.time == MONDAY + 7 * FIVE


class Weighing(Buying):
    """Holds a growing weight, and none from the seventh close on."""

    async def on_close(self, desk: Desk) -> None:
        self.equities.append(desk.equity)
        closes = len(self.equities)
        desk.weights({"BTCUSDT": 0 if closes > 6 else 0.1 * closes})


async def test_weights_after_limit_are_denied_on_record() -> None:
    agent = Weighing()
    agent.limits = LossLimits(max_loss_pct=Decimal(1))
    evening = await traded(agent, [1000, 1000, 990, 900, 900, 900, 900, 900, 900])

    assert await halts(evening) == [("tripped", "max_loss_pct", 4)]
    denied = await facts(evening, "intent.denied")
    assert {(each.body["rule"], each.body["side"]) for each in denied} == {("max_loss_pct", "buy")}
    assert [round((each.as_of - MONDAY) / FIVE) for each in denied if each.as_of] == [4, 5, 6]
    assert {each.side for each in agent.reports if isinstance(each, Fill)} == {Side.BUY, Side.SELL}


async def test_stop_of_filled_entry_stays_after_limit() -> None:
    class Stopped(Buying):
        async def on_close(self, desk: Desk) -> None:
            self.equities.append(desk.equity)
            if len(self.equities) == 1:
                desk.buy(notional=50_000, stop=900)

    agent = Stopped()
    agent.limits = LossLimits(max_drawdown_pct=Decimal(1))
    await traded(agent, [1000, 1000, 950, 940, 800])

    assert [each.cause for each in agent.reports if isinstance(each, Fill)] == ["order", "stop_loss"]


async def test_daily_limit_is_resumed_on_the_next_day_of_its_zone() -> None:
    limits = LossLimits(max_daily_loss_pct=Decimal(1), daily_loss_resume="next day")
    # The day begins at 05:00 UTC in New York, which is after the close of bar 60.
    closes = [1000, 1000, 900, 900, 900, 900]
    for zone, resumed in (("America/New_York", 61), ("UTC", None)):
        agent = Buying()
        agent.limits = limits
        evening = await traded(agent, closes, bars=walk(closes, 56), zone=zone)

        after = [] if resumed is None else [("resumed", "max_daily_loss_pct", resumed)]
        assert await halts(evening) == [("tripped", "max_daily_loss_pct", 59), *after]


async def test_next_day_does_not_resume_other_limits() -> None:
    agent = Buying()
    agent.limits = LossLimits(
        max_daily_loss_pct=Decimal("0.5"), max_loss_pct=Decimal(1), daily_loss_resume="next day"
    )
    closes = [1000, 1000, 900, 900, 900, 900]
    evening = await traded(agent, closes, bars=walk(closes, 284))

    assert await halts(evening) == [
        ("tripped", "max_loss_pct", 287),
        ("tripped", "max_daily_loss_pct", 287),
        ("resumed", "max_daily_loss_pct", 289),
    ]
    denied = [each.body["rule"] for each in await facts(evening, "intent.denied")]
    assert denied == ["max_loss_pct"] * 4


async def test_backtest_holds_a_limit_to_its_end() -> None:
    agent = Buying()
    agent.limits = LossLimits(max_daily_loss_pct=Decimal(1))
    closes = [1000, 900, 800, *[1000] * 300]
    evening = await traded(agent, closes)

    assert [kind for kind, *_ in await halts(evening)] == ["tripped"]
    assert max(each.as_of or MONDAY for each in await facts(evening, "intent.approved")) < MONDAY + 4 * FIVE


def test_narrower_limit_of_configuration_and_agent_holds() -> None:
    of_agent = RiskLimits(max_loss_pct=Decimal(5), max_drawdown_pct=Decimal(3), require_stop=False)
    config = LossLimits(max_loss_pct=Decimal(2), max_drawdown_pct=Decimal(8), max_daily_loss_pct=Decimal(1))

    both = of_agent.narrowed_to(config)

    assert (both.max_loss_pct, both.max_drawdown_pct, both.max_daily_loss_pct) == (2, 3, 1)
    assert not both.require_stop
    assert both.rules.keys() == {"max_loss_pct", "max_daily_loss_pct", "max_drawdown_pct"}


@pytest.mark.parametrize(
    ("one", "other", "resume"),
    [
        (("next day", 1), ("operator", 2), "operator"),
        (("next day", 1), ("next day", 2), "next day"),
        (("next day", 1), ("operator", None), "next day"),
        (("operator", None), ("next day", None), "operator"),
    ],
)
def test_next_day_resumes_only_if_all_daily_limits_allow_it(
    one: tuple[Any, Any], other: tuple[Any, Any], resume: str
) -> None:
    made = [LossLimits(daily_loss_resume=each, max_daily_loss_pct=percent) for each, percent in (one, other)]

    assert made[0].narrowed_to(made[1]).daily_loss_resume == resume
    assert made[1].narrowed_to(made[0]).daily_loss_resume == resume


class Failing(Agent):
    """Buys at each close, and fails after its request at the closes in `fails_at`."""

    def __init__(self, fails_at: Sequence[int]) -> None:
        super().__init__()
        self.fails_at = fails_at
        self.closes = 0

    async def on_close(self, desk: Desk) -> None:
        self.closes += 1
        desk.buy(notional=500)
        if self.closes in self.fails_at:
            raise KeyError(self.closes)


async def test_resume_after_errors_allows_three_more() -> None:
    resumes = RecordedResumes({MONDAY + 6 * FIVE: OperatorResume("ann", "mended", "command-1")})
    closes = [1000] * 14
    evening = await traded(Failing((1, 2, 3, 7, 8, 10, 11, 12)), closes, ends_on_error=False, resumes=resumes)

    assert await halts(evening) == [("resumed", "agent_failed", 6)]
    failed = await facts(evening, "agent.failed")
    assert [each.body["halts_entries"] for each in failed] == [False, False, True, *[False] * 4, True]
    bought = [
        round((each.as_of - MONDAY) / FIVE) for each in await facts(evening, "intent.approved") if each.as_of
    ]
    assert bought == [6, 9]
    denied = await facts(evening, "intent.denied")
    assert {each.body["rule"] for each in denied} == {"agent_failed"}
    assert len(denied) == 4


class Trader(Buying):
    """The agent of the sessions in folders."""

    limits = LossLimits(max_loss_pct=Decimal(50))


CLOSES = [1000, 1000, 900, 900, 900, 900, 900, 890, 880, 600, 600, 600]
RISK = {"max_drawdown_pct": "1", "max_daily_loss_pct": 2.5}


async def ran_on_paper(folder: Path, bars: int, **changes: Any) -> Any:
    own = await asyncio.to_thread(load_agent, f"{__name__}:Trader")
    source = folder.parent / "BTCUSDT.csv"
    await asyncio.to_thread(write, source, csv_of(walk(CLOSES)["walk"]))
    run = options(folder, data=(str(source),), bars=None, mode="paper", agent=own)
    values = {**run.config.public_values(), "risk": RISK}
    config = await asyncio.to_thread(PlatformConfig.model_validate, values)
    return await ran(folder, data=(str(source),), bars=bars, agent=own, config=config, **changes)


async def resumed_by_operator(folder: Path, session: str) -> None:
    nobody: dict[str, Any] = dict.fromkeys(("agent", "workflow", "model"))
    command = resume_command("default", entries=session, **nobody)
    await execute(BudgetLocationOptions(folder), "default", command, "checked")


async def changes_in(folder: Path) -> list[tuple[str, int]]:
    records = events_in(await kept_in(folder / "interactions.jsonl"), "risk.tripped", "risk.resumed")
    unique = {each.id: each for each in records}.values()
    return [(each.kind, round((each.as_of - MONDAY) / FIVE)) for each in unique if each.as_of is not None]


async def test_operator_resumes_entries_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "paper"
    first = await ran_on_paper(folder, 5)
    (halt,) = (await read_status(BudgetLocationOptions(folder), "default")).controls.halts
    again = await ran_on_paper(folder, 6, resume=True)
    await resumed_by_operator(folder, first.session_id)
    more = await ran_on_paper(folder, 9, resume=True)
    last = await ran_on_paper(folder, 12, resume=True)

    assert (halt.scope, halt.id, halt.by) == ("entries", first.session_id, "the session")
    assert first.entries_halted == ["max_drawdown_pct"]
    assert again.entries_halted == ["max_drawdown_pct"]
    assert more.entries_halted == []
    # The base after the resume is the equity of close 7, so that the limit is reached again at close 10 only.
    assert set(last.entries_halted) == {"max_drawdown_pct", "max_daily_loss_pct"}
    assert [(each.kind, each.rules, each.by != "") for each in last.entry_changes[:2]] == [
        ("tripped", ("max_drawdown_pct",), False),
        ("resumed", ("max_drawdown_pct",), True),
    ]
    assert (await changes_in(folder))[:2] == [("risk.tripped", 3), ("risk.resumed", 7)]
    own = await asyncio.to_thread(load_agent, f"{__name__}:Trader")
    for workers in (1, 8):
        assert (await replay(folder, workers=workers, agent=own)).identical
    commands = events_in(await kept_in(folder / "interactions.jsonl"), "operator.commanded")
    (resumed,) = [
        each
        for each in events_in(await kept_in(folder / "interactions.jsonl"), "risk.resumed")
        if each.body["by"]
    ][:1]
    assert resumed.body["command_id"] in {each.id for each in commands}
    assert resumed.body["why"] == "checked"


async def test_new_trip_needs_a_new_resume(tmp_path: Path) -> None:
    folder = tmp_path / "paper"
    first = await ran_on_paper(folder, 5)
    await resumed_by_operator(folder, first.session_id)
    await ran_on_paper(folder, 11, resume=True)
    last = await ran_on_paper(folder, 12, resume=True)

    assert "max_drawdown_pct" in last.entries_halted
    (halt,) = (await read_status(BudgetLocationOptions(folder), "default")).controls.halts
    assert halt.id == first.session_id


async def test_resumed_run_keeps_its_limits(tmp_path: Path) -> None:
    folder = tmp_path / "paper"
    await ran_on_paper(folder, 5)
    own = await asyncio.to_thread(load_agent, f"{__name__}:Trader")
    source = str(tmp_path / "BTCUSDT.csv")

    with pytest.raises(OptionError, match=r"\[risk\] is '?\{\}"):
        await ran(folder, data=(source,), bars=7, agent=own, mode="paper", resume=True)


async def test_killed_run_repeats_its_halt(tmp_path: Path) -> None:
    await ran_on_paper(tmp_path / "parts", 4)
    await ran_on_paper(tmp_path / "parts", 9, resume=True)
    await ran_on_paper(tmp_path / "whole", 9)

    assert decided(tmp_path / "parts") == decided(tmp_path / "whole")


async def test_report_page_shows_halted_entries(tmp_path: Path) -> None:
    folder = tmp_path / "paper"
    await ran_on_paper(folder, 5)

    run = await read_run(folder)

    (warning,) = [
        each
        for each in (await asyncio.to_thread(page_of, run, ReportTerms(None))).warnings
        if "halted" in each
    ]
    assert warning.startswith(
        "Entries are halted by max_drawdown_pct since 2026-01-05 00:15 UTC, at an equity"
    )
