"""Sessions of an agent: what its handlers get, ask and trade, and that a replay repeats it."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from agentic_trading.desk import Agent, Bar, Desk, DeskError, Fill, Question, known
from agentic_trading.desk.agents.errors import AgentFailedError
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.replay import replay
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.store import LOG_NAME
from agentic_trading.operate.session_folder import SessionFolder
from tests.desk.agents.trading import (
    BTC,
    Asking,
    Rotating,
    Switching,
    View,
    answers_of,
    attempts,
    facts,
    named,
    played,
    ran_with,
)
from tests.flows.sessions import LOADED, Shuffled, decided, events_in, kept_in, ran, with_faults

FIVE = timedelta(minutes=5)

DIGESTS = {
    "analyst": "73bd6648aa5584986823fc8e307ae5983b6979b000da41b83918ff6e501cacc2",
    "two markets": "f7df436faaa82e13b5a3e9d64788b69af519d4e96ae49151b3910618d2a18b6c",
    "planner": "ad97c12587c640593c48c4baf39dce614307a24c2d55c0c03afc4e0f8c9f2eda",
}
"""Digests of release 0.1.0, before the shipped agents had a protocol."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("analyst", {"inject": "malformed=5%,timeout=2%,refusal=1%,truncated=1%", "seed": "5"}),
        ("two markets", {"data": ("btcusdt-5m", "ethusdt-5m")}),
        ("planner", {"data": ("sp500-sample",)}),
    ],
)
async def test_shipped_agents_decide_as_in_release_0_1_0(
    name: str, terms: dict[str, Any], tmp_path: Path
) -> None:
    report = await ran(tmp_path, **{"data": ("btcusdt-5m",), "bars": None, **terms})

    assert report.digest == DIGESTS[name]
    manifest = await asyncio.to_thread(SessionFolder(tmp_path).read_manifest)
    assert (manifest.version, manifest.agent) == (2, None)


@pytest.mark.parametrize("agent", [Asking, Rotating])
async def test_replay_of_own_agent_is_identical(agent: type[Agent], tmp_path: Path) -> None:
    report = await ran_with(tmp_path, agent, inject="malformed=30%,timeout=15%,refusal=15%", seed="2")

    assert report.fills > 0
    assert report.no_decisions["agent"]
    for workers in (1, 8):
        again = await replay(tmp_path, workers=workers, agent=await named(agent))
        assert (again.identical, again.misses, again.unused) == (True, 0, 0)


@pytest.mark.parametrize("data", [("btcusdt-5m", "ethusdt-5m"), ("sp500-sample",)])
async def test_weights_sell_before_they_buy(data: tuple[str, ...], tmp_path: Path) -> None:
    report = await ran_with(tmp_path, Switching, data=data, bars=30)

    assert report.fills >= 8
    # The plain orders of weights are market orders, so that their baseline has the same fills.
    assert report.market_now_pnl == report.pnl
    cash = trading.STARTING_CASH
    for event in events_in(await kept_in(tmp_path / LOG_NAME), Fill.KIND):
        cash += Fill.model_validate(event.body).cash_change
        assert cash >= 0


async def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    await ran_with(tmp_path / "whole", Rotating)
    await ran_with(tmp_path / "parts", Rotating, bars=150)
    await ran_with(tmp_path / "parts", Rotating, bars=300, resume=True)

    assert decided(tmp_path / "parts") == decided(tmp_path / "whole")


async def test_order_of_answers_has_no_effect() -> None:
    agent = Rotating()
    plain = await played(agent, most_bars=400, bars=LOADED)
    mixed = await played(Rotating(), Shuffled(answers_of(agent)), most_bars=400, workers=8, bars=LOADED)

    assert plain.lines
    assert mixed.digest == plain.digest


async def test_order_is_explained_by_answer_and_bar() -> None:
    evening = await played(Asking(), most_bars=60)

    woken, bought = (await facts(evening, "agent.woken"))[0], (await facts(evening, "intent.approved"))[0]
    asked = (await attempts(evening))[0]
    assert bought.causation_id == asked.interaction_id
    assert asked.envelope.causation_id == woken.id
    assert {woken.trace_id, bought.trace_id} == {asked.envelope.trace_id}
    assert woken.body["bar"]["timeframe"] == "1h"
    assert asked.envelope.as_of == woken.as_of


async def test_missing_answer_is_false_and_on_record() -> None:
    class Mute(Asking):
        def offline(self, envelope: LLMEnvelope) -> str:
            return "no JSON"

    evening = await played(Mute(), most_bars=60)

    missing = await facts(evening, "agent.undecided")
    assert missing
    assert {each.body["reason"]["category"] for each in missing} == {"parsing_error"}
    assert await facts(evening, "intent.approved") == []


async def test_validator_of_answer_is_run_and_answer_asked_again() -> None:
    class Odd(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def _is_odd(cls, number: int) -> int:
            if number % 2 == 0:
                raise ValueError("an odd number, please")
            return number

    seen: list[Any] = []

    class Counting(Agent):
        timeframe = "4h"

        def offline(self, envelope: LLMEnvelope) -> str:
            return '{"number": 2}'

        async def on_bar(self, desk: Desk, bar: Bar) -> None:
            seen.append(await desk.decide("A number?", output=Odd))

    evening = await played(Counting(), most_bars=60)

    assert len(await attempts(evening)) > len(seen) > 0
    assert not any(seen)
    assert "an odd number" in seen[0].failure.technical_details + seen[0].failure.description


class Watching(Agent):
    """Writes down the order in which its handlers run."""

    timeframe = "15m"

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.ran: list[tuple[str, str, datetime]] = []

    async def on_start(self, desk: Desk) -> None:
        self.ran.append(("start", "", desk.now))
        desk.at(desk.now + 3 * FIVE, "b")
        desk.at(desk.now + 3 * FIVE, "a")
        desk.buy("BTCUSDT", quantity="0.1")

    async def on_fill(self, desk: Desk, report: Any) -> None:
        self.ran.append(("fill", report.symbol, desk.now))

    async def on_timer(self, desk: Desk, name: str) -> None:
        self.ran.append(("timer", name, desk.now))

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        self.ran.append(("bar", bar.symbol, desk.now))

    async def on_close(self, desk: Desk) -> None:
        self.ran.append(("close", "", desk.now))


async def test_handlers_run_in_order_at_each_close() -> None:
    agent = Watching()
    await played(agent, most_bars=4)

    first = BTC["btcusdt-5m"][0].close_time
    assert agent.ran == [
        ("start", "", first),
        ("close", "", first),
        ("fill", "BTCUSDT", first + FIVE),
        ("close", "", first + FIVE),
        ("bar", "BTCUSDT", first + 2 * FIVE),
        ("close", "", first + 2 * FIVE),
        ("timer", "a", first + 3 * FIVE),
        ("timer", "b", first + 3 * FIVE),
        ("close", "", first + 3 * FIVE),
    ]


class Doing(Agent):
    """Does one thing at the first close."""

    async def on_start(self, desk: Desk) -> None:
        await self.do(desk)

    async def do(self, desk: Desk) -> None:
        raise NotImplementedError


class Gathers(Doing):
    async def do(self, desk: Desk) -> None:
        await asyncio.gather(  # noqa: TID251 - as a user may write it
            desk.decide("a", output=View), desk.decide("b", output=View)
        )


class PeeksAhead(Doing):
    async def do(self, desk: Desk) -> None:
        await desk.decide(
            "a", output=View, evidence={"news": known("up", at=desk.now + timedelta(seconds=1))}
        )


class NamesNoSymbol(Doing):
    async def do(self, desk: Desk) -> None:
        desk.buy("BTCUSD", notional=1000)


class GivesTwoSizes(Doing):
    async def do(self, desk: Desk) -> None:
        desk.buy(notional=1000, quantity=1)


class GivesNoStop(Doing):
    async def do(self, desk: Desk) -> None:
        desk.buy(risk_pct=1)


class GivesUnknownTerms(Doing):
    async def do(self, desk: Desk) -> None:
        desk.buy(quantity=1, price=5)


class GivesNoNumber(Doing):
    async def do(self, desk: Desk) -> None:
        desk.buy(quantity=float("nan"))


class NamesNoBars(Doing):
    async def do(self, desk: Desk) -> None:
        desk.history(timeframe="4h")


class AsksOtherWorkflow(Doing):
    async def do(self, desk: Desk) -> None:
        await desk.decide("a", output=View, workflow="planning")  # type: ignore[arg-type]


class MixesWeights(Doing):
    async def do(self, desk: Desk) -> None:
        desk.buy(quantity="0.1")
        desk.weights({"BTCUSDT": 0.1})


class WeighsNoSymbol(Doing):
    async def do(self, desk: Desk) -> None:
        desk.weights({"XRP": 0.1})


class StepsNowhere(Doing):
    async def do(self, desk: Desk) -> None:
        desk.every(timedelta(0), "now")


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (Gathers, "at once with `decide_all`"),
        (PeeksAhead, "news"),
        (NamesNoSymbol, "there is no symbol 'BTCUSD' in this session. Allowed: BTCUSDT"),
        (GivesTwoSizes, "Give one of quantity, notional, weight, risk_pct"),
        (GivesNoStop, "risk_pct needs stop="),
        (GivesUnknownTerms, "unknown terms: price"),
        (GivesNoNumber, "nan is not a finite number"),
        (NamesNoBars, "bars of 4h are not kept. Allowed: 5m"),
        (AsksOtherWorkflow, "workflow=planning. Allowed: analysis"),
        (MixesWeights, "Use only one of them"),
        (WeighsNoSymbol, "there is no symbol 'XRP'"),
        (StepsNowhere, "Allowed: a time above 0"),
    ],
)
async def test_misuse_raises_error_with_allowed_use(agent: type[Agent], message: str) -> None:
    with pytest.raises(AgentFailedError, match="on_start raised") as raised:
        await played(agent(), most_bars=3)

    assert message in str(raised.value)


async def test_desk_is_refused_after_its_handler() -> None:
    kept: list[Desk] = []

    class Keeping(Doing):
        async def do(self, desk: Desk) -> None:
            kept.append(desk)

    await played(Keeping(), most_bars=2)

    with pytest.raises(DeskError, match="Use it within a handler only"):
        kept[0].buy("BTCUSDT", notional=1)


async def test_answer_without_output_is_no_cause() -> None:
    class Careless(Doing):
        def offline(self, envelope: LLMEnvelope) -> str:
            return "no JSON"

        async def do(self, desk: Desk) -> None:
            desk.buy(notional=1000, because=await desk.decide("a", output=View))

    with pytest.raises(AgentFailedError, match="if not answer: return"):
        await played(Careless(), most_bars=2)


class Breaking(Agent):
    """Buys at every second close, and fails at the given closes after its request."""

    def __init__(self, fails_at: tuple[int, ...]) -> None:
        super().__init__()
        self.closes = 0
        self.fails_at = fails_at

    async def on_close(self, desk: Desk) -> None:
        self.closes += 1
        if self.closes == 9:
            desk.close()
            return
        desk.buy(notional=500)
        if self.closes in self.fails_at:
            raise KeyError(self.closes)


async def test_error_of_handler_ends_a_backtest_on_record() -> None:
    agent = Breaking((2,))

    with pytest.raises(AgentFailedError, match=r"Breaking.on_close raised KeyError: 2 \(test_agent_"):
        await played(agent, most_bars=10)

    assert agent.closes == 2


async def test_requests_of_failed_handler_are_dropped_on_paper() -> None:
    evening = await played(Breaking((2, 4)), most_bars=5, ends_on_error=False)

    failed = await facts(evening, "agent.failed")
    assert [each.body["in_a_row"] for each in failed] == [1, 1]
    assert not any(each.body["halts_entries"] for each in failed)
    assert {each.body["error"] for each in failed} == {"KeyError"}
    assert all(each.body["place"].startswith("test_agent_sessions.py:") for each in failed)
    bought = [each.as_of for each in await facts(evening, "intent.approved")]
    closes = [bar.close_time for bar in BTC["btcusdt-5m"][:5]]
    assert bought == [closes[0], closes[2], closes[4]]


async def test_three_errors_in_a_row_let_only_exits_through() -> None:
    evening = await played(Breaking((3, 4, 5)), most_bars=9, ends_on_error=False)

    failed = await facts(evening, "agent.failed")
    assert [(each.body["in_a_row"], each.body["halts_entries"]) for each in failed] == [
        (1, False),
        (2, False),
        (3, True),
    ]
    denied = await facts(evening, "intent.denied")
    assert [each.body["rule"] for each in denied] == ["agent_failed"] * 3
    approved = [each.body["kind"] for each in await facts(evening, "intent.approved")]
    assert approved == ["entry", "entry", "exit"]


async def test_error_of_session_is_not_the_agents() -> None:
    class FullDisk(Doing):
        async def do(self, desk: Desk) -> None:
            raise StoreError(Path("log"), "cannot be written")

    with pytest.raises(StoreError):
        await played(FullDisk(), most_bars=2, ends_on_error=False)


class Balanced(Agent):
    """Holds half of the equity in each of two markets, and a quarter after a while."""

    timeframe = "1h"

    async def on_close(self, desk: Desk) -> None:
        count = len(desk.history("BTCUSDT"))
        if count and len(desk.history("BTCUSDT", timeframe="5m")) % 12 == 0:
            share = 0.4 if count < 6 else 0.2
            desk.weights(dict.fromkeys(desk.symbols, share))


async def test_weights_are_held_in_all_markets(tmp_path: Path) -> None:
    report = await ran_with(tmp_path, Balanced, bars=150)

    assert {each.symbol for each in report.open_positions} == {"BTCUSDT", "ETHUSDT"}
    assert (await replay(tmp_path, agent=await named(Balanced))).identical


class Shorting(Agent):
    """Sells short, checks its account, and closes."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.seen: list[Any] = []

    async def on_close(self, desk: Desk) -> None:
        if len(desk.history()) == 2:
            self.seen.append(desk.sell(weight=0.1, reason="down"))
            self.seen.append(desk.close())
        elif len(desk.history()) == 5:
            self.seen += [
                desk.position(),
                desk.equity,
                desk.price(),
                desk.account.cash,
                desk.target(weight=0),
            ]
        elif len(desk.history()) == 6:
            await desk.cancel()
            self.seen += [desk.atr(), desk.frame() is not None, len(desk.orders), desk.buy(quantity="1e-9")]


async def test_short_position_is_reported_and_closed() -> None:
    agent = Shorting()
    evening = await played(agent, most_bars=8)

    sold, closed, held, equity, price, cash, exited, atr, has_frame, _, small = agent.seen
    assert (sold.intent.side, sold.intent.kind, closed) == ("sell", "entry", None)
    assert held < 0
    assert cash + held * price == equity
    assert exited.intent.kind == "exit"
    assert (atr, has_frame, small.rule) == (None, True, "min_quantity")
    assert [each.body["side"] for each in await facts(evening, "order.filled")] == ["sell", "buy"]


async def test_equal_questions_at_once_have_own_answers() -> None:
    class Twice(Doing):
        async def do(self, desk: Desk) -> None:
            question = Question("Where?", View)
            answers = await desk.decide_all(question, question)
            assert len({id(each) for each in answers}) == 2

    evening = await played(Twice(), with_faults(answers_of(Asking()), ""), most_bars=2)

    steps = [each.envelope.step for each in await attempts(evening)]
    assert steps == ["on_start.1", "on_start.2"]
