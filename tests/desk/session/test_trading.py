"""The wiring: each mode with its clock, its log and its strictness, and answers from where they shall come."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentic_trading.clock import MarketClock, SimClock
from agentic_trading.desk.analysis.judgement import CMT_ASSESSMENT_SCHEMA
from agentic_trading.desk.execution.strategy import FILL_STRATEGY_SCHEMA
from agentic_trading.desk.planning.schema import STRATEGY_PARAMS
from agentic_trading.desk.session import trading
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.models import TableError
from agentic_trading.llm.providers.fault_injection import FaultsError, FaultyProvider
from agentic_trading.llm.providers.offline import RulesProvider
from agentic_trading.operate import providers
from agentic_trading.platform import port_adapters
from agentic_trading.platform.config import ProviderConfig
from agentic_trading.platform.tables import load_tables
from tests.build import interaction
from tests.flows.sessions import PRICED, Priced, calls_in, evening, events_in, rules, with_faults

DAY = datetime(2026, 1, 2, tzinfo=UTC)


def test_every_schema_has_rule_and_check() -> None:
    names = {CMT_ASSESSMENT_SCHEMA["$id"], FILL_STRATEGY_SCHEMA["$id"], STRATEGY_PARAMS}

    assert trading.RULES.keys() == trading.CHECKS.keys() == names


@pytest.mark.parametrize(("symbols", "beside"), [(["BTCUSDT"], "ETHUSDT"), (["ETHUSDT"], "BTCUSDT")])
def test_shipped_market_has_other_as_companion(symbols: list[str], beside: str) -> None:
    companion = trading.companions(symbols)[symbols[0]]

    second = companion.reference_market(DAY)

    assert second is not None
    assert second.symbol == beside


@pytest.mark.parametrize("symbols", [["BTCUSDT", "ETHUSDT"], ["XRPUSDT"]])
def test_pair_or_unknown_has_no_companion(symbols: list[str]) -> None:
    assert trading.companions(symbols) == {}


def test_rules_inject_faults_only_on_request() -> None:
    assert isinstance(trading.rules(inject="", seed="1").providers.of("rules"), RulesProvider)
    assert isinstance(trading.rules(inject="cut=1%", seed="1").providers.of("rules"), FaultyProvider)
    with pytest.raises(FaultsError):
        trading.rules(inject="cut", seed="1")


async def test_recording_answers_as_recorded_model() -> None:
    one = interaction()
    recorded = port_adapters.recording([one])

    answers = trading.replayed(recorded, LLMProvider.SCRIPTED, "scripted-1")

    assert (answers.llm, answers.model, answers.recorded) == (LLMProvider.SCRIPTED, "scripted-1", recorded)
    assert answers.providers.of("any") is recorded
    assert await recorded.find(one.envelope, 1) == one.result


def test_clock_depends_on_session_mode() -> None:
    still, following = trading.clock_for("backtest"), trading.clock_for("paper")

    for clock in (still, following):
        clock.advance_to(DAY)

    assert isinstance(still, SimClock)
    assert isinstance(following, MarketClock)
    assert still.now() == DAY
    assert DAY <= following.now() < DAY + timedelta(seconds=5)


def test_invalid_model_table_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    path.write_text('{"rows": [{"provider": "rules"}]}', encoding="utf-8")

    with pytest.raises(TableError, match=r"models\.json, row 1, "):
        load_tables(path)


async def test_every_dispatched_call_is_logged() -> None:
    for mode in ("paper", "backtest"):
        kept = await (await evening(mode=mode)).records()

        noted = {event.body["reservation_id"] for event in events_in(kept, "attempt.dispatched")}
        assert noted == {one.result.reservation_id for one in calls_in(kept) if one.result.dispatched_at}
        assert noted


async def test_fault_injection_depends_on_seed() -> None:
    one, same, other = [await evening(with_faults(rules(), seed=seed)) for seed in ("1", "1", "2")]

    assert one.log == same.log != other.log


@pytest.mark.parametrize(
    ("name", "adapter", "is_patient"),
    [
        ("local", None, True),
        ("local", "local", True),
        ("small", "local", True),
        ("local", "openai", False),
        ("small", "openai", False),
    ],
)
def test_retry_patience_follows_adapter(name: str, adapter: str | None, *, is_patient: bool) -> None:
    assert (name in providers.patience_of({name: ProviderConfig(adapter=adapter)})) is is_patient
    assert "local" in providers.patience_of({})


async def test_zero_budget_allows_only_free_models() -> None:
    free = await evening(ledger=port_adapters.budget_ledger(0))
    priced = await evening(Priced(), model=PRICED, ledger=port_adapters.budget_ledger(0))

    assert free.played.counters.no_decisions == {}
    assert free.played.counters.decisions["analysis"].total() > 0
    assert set(priced.played.counters.no_decisions["analysis"]) == {FailureKind.BUDGET_EXHAUSTED}
    assert priced.played.counters.decisions == {}
