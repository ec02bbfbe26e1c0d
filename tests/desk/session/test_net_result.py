"""The result of a run net of inference, the cost of each trade, and the conditions on them."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.cli.exits import ExitCode
from agentic_trading.desk.cli.summary import _net
from agentic_trading.desk.inference import InferenceGate, InferenceRate
from agentic_trading.desk.instrument import ZERO
from agentic_trading.desk.session.report_builder import report_of
from agentic_trading.llm.limits import NANO
from agentic_trading.operate.session_folder import SessionFolder
from agentic_trading.platform.errors import OptionError
from tests.cli.conftest import Command, _own_place, command  # noqa: F401 - its fixtures
from tests.desk.cli.reports import report
from tests.desk.session.asking import options
from tests.flows.sessions import LOADED, PRICED, TABLES, Priced, evening
from tests.operate.test_session_folder import manifest

amounts = st.decimals(-1_000, 1_000, places=4)


async def test_net_result_is_pnl_less_all_inference() -> None:
    played = await evening(
        Priced(), model=PRICED, bars={"btcusdt-5m": LOADED["btcusdt-5m"]}, symbols=["BTCUSDT"], most_bars=700
    )
    rate = InferenceRate("USDT", Decimal("0.5"))

    report = await report_of(
        manifest(),
        SessionFolder(Path("out")),
        played.played,
        played.store,
        TABLES,
        elapsed_s=0,
        rate=rate,
    )

    assert report.inference_nusd == report.cost_nusd > 0
    assert report.inference == Decimal(report.cost_nusd) / NANO / 2
    assert report.net_pnl == report.pnl - report.inference
    assert sum((each.pnl for each in report.trades), ZERO) == report.pnl
    used = [each.inference_nusd for each in report.trades]
    assert 0 < sum(used) <= report.inference_nusd
    assert all(each.net == each.pnl - rate.cost(each.inference_nusd) for each in report.trades)
    named = dict(_net(report))
    assert named["net of inference"].startswith(f"{report.net_pnl:+,.2f} USDT, after inference ")
    assert "inference by trade" in named


@given(amounts, st.decimals(0, 1_000, places=4), amounts, st.decimals(0, 3, places=2))
def test_gate_is_exact(pnl: Decimal, inference: Decimal, least: Decimal, share: Decimal) -> None:
    assert bool(InferenceGate(min_net_pnl=least).problems(pnl, inference)) == (pnl - inference < least)
    is_within = inference <= share * pnl if pnl > 0 else inference == 0
    assert bool(InferenceGate(max_share=share).problems(pnl, inference)) != is_within


def test_gate_without_conditions_passes_and_needs_no_rate() -> None:
    assert InferenceGate().problems(Decimal(-5), None) == []
    (problem,) = InferenceGate(max_share=Decimal(1)).problems(Decimal(5), None)
    assert "--inference-rate" in problem


def test_missing_rate_is_shown_in_summary() -> None:
    lines = dict(_net(report(inference_nusd=5 * NANO, currency="EUR")))

    assert lines["net of inference"].endswith("for a P&L in EUR, pass --inference-rate")


def test_rate_of_another_currency_is_refused() -> None:
    with pytest.raises(OptionError, match=r"--inference-rate is USDEUR=0\.91, and the P&L is in USDT"):
        options(inference_rate=InferenceRate("EUR", Decimal("0.91")))


@pytest.mark.timeout(60)
def test_broken_condition_is_exit_code_1(command: Command) -> None:  # noqa: F811 - a fixture
    bars = "open_time,open,high,low,close,volume\n2023-03-20T00:00:00Z,100,102,99,101,5\n"
    Path("abc-5m.csv").write_text(bars, encoding="utf-8")
    run = ("run", "--data", "abc-5m.csv", "--out", "out", "--json", "--min-net-pnl")

    passed = command(*run, "0", "--max-inference-share", "0.5")
    broken = command(*run, "0.01")
    wrong = command(*run, "much")

    assert (passed.code, json.loads(passed.out)["net_pnl"]) == (ExitCode.DONE, "0")
    assert broken.code == ExitCode.FOUND_WRONG
    assert json.loads(broken.out)["trades"] == []
    assert "is 0, and --min-net-pnl is 0.01" in " ".join(broken.err.split())
    assert wrong.code == ExitCode.BAD_INPUT
