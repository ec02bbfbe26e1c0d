"""The summary of a run says what a trader asks, and what to type next."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentic_trading.cli.output import print_table
from agentic_trading.desk.cli.summary import next_steps, summary
from agentic_trading.desk.metrics import performance
from agentic_trading.desk.session.report import FillingCost, MarketYear, RefusedBudget, UnpricedWord
from tests.desk.cli.reports import fed, report, sent, working


def told(**changes: Any) -> str:
    """Return the summary as plain text."""
    console = Console(width=200, markup=False)
    with console.capture() as captured:
        console.print(summary(report(**changes)))
    return captured.get()


def line_with(text: str, start: str) -> str:
    """Return the line that begins with `start`, its white space squeezed."""
    [line] = [line for line in text.splitlines() if line.strip().startswith(start)]
    return " ".join(line.split())


@pytest.mark.parametrize(
    ("start", "line"),
    [
        ("BTCUSDT", "BTCUSDT 2,576 bars, 2023-03-20 00:00 to 2023-03-29 00:00 UTC, from btcusdt-5m"),
        ("gap:", "gap: 2023-03-24 12:40 to 14:00, 16 bars"),
        ("analysis", "analysis stand_aside 12 · long 3"),
        ("no decision, analysis", "no decision, analysis timeout 2 · refusal 1"),
        ("triggers skipped", "triggers skipped no_trigger 200"),
        ("attempts", "attempts 21: accepted 17 · timeout 4"),
        ("injected timeout", "injected timeout 4: retried, then accepted 3 · no decision 1"),
        ("tokens", "tokens 12,345 in · 678 out"),
        ("cost", "cost 0.001235 of 5.000000 USD (0.0 %)"),
        ("intents  ", "intents 4 · refused by pre-trade limits 1 (max_position 1)"),
        ("sent", "sent orders 3 · fills 5 · fees 1.25"),
        ("intents filled", "intents filled full 1 · none 1 · partial 1"),
        ("shortfall", "shortfall +3.40 bps of 14,000.00: prices +3.51, fees 1.25"),
        ("cancelled", "cancelled 2: deadline 2"),
        ("open at the end", "open at the end -0.5 BTCUSDT at 27900.50, unrealised +49.75"),
        ("assumptions", "assumptions fees of 2 bps · no latency"),
        ("out of sample", "out of sample, BTCUSDT no: the rules were written with this sample in view"),
        ("this run", "this run -12.50 -0.12 % +3.40 bps"),
        ("market orders", "market orders instead -15.75 -0.16 % +7.50 bps"),
        ("buy and hold", "buy and hold +310.00 +3.10 %"),
        ("log", "log runs/demo/interactions.jsonl"),
        ("digest", f"digest sha256:{'ab' * 32}"),
    ],
)
def test_each_fact_has_own_line(start: str, line: str) -> None:
    assert line_with(told(), start) == line


def test_unpriced_word_shows_remedy() -> None:
    add = "add service_tier to the price of stub/m-1"
    word = UnpricedWord(model="stub/m-1", word="service_tier=on_demand", attempts=3, add=add)

    text = told(unpriced=[word], bill_problems={"usage.cost is -1": 2})

    assert line_with(text, "no price") == (
        f"no price service_tier=on_demand: 3 attempts of stub/m-1 charged the reserved amount. To fix this, {add}"
    )
    assert line_with(text, "bill not read") == "bill not read 2 attempts: usage.cost is -1"


def test_zero_cost_rules_shown_as_free() -> None:
    assert line_with(told(cost_nusd=0), "cost") == (
        "cost 0.000000 of 5.000000 USD (0.0 %), rules are free and --budget-usd applies only to priced models"
    )


def test_budget_exhaustion_links_budget_history() -> None:
    assert "agentic-trading budget history --store runs/demo" in told(
        no_decisions={"analysis": {"budget_exhausted": 3}}
    )
    assert "budget history" not in told(no_decisions={"analysis": {"timeout": 3}})


def test_refusing_budget_is_named() -> None:
    budgets = [
        RefusedBudget(
            scope="tenant acme this day", unit="nano-USD", calls=12, asked=42_000_000, left=11_300_000
        ),
        RefusedBudget(scope="agent cmt-1 this day", unit="calls", calls=1, asked=1, left=0),
        RefusedBudget(scope="not on record", unit="", calls=2, asked=None, left=None),
    ]

    text = " ".join(told(refused_budgets=budgets).split())

    assert (
        "tenant acme this day: 12 attempts, the first with 0.011300 USD left and up to 0.042000 needed"
        in text
    )
    assert "agent cmt-1 this day: 1 attempt, the first with 0 calls left and up to 1 needed" in text
    assert "not on record: 2 attempts" in text


def test_rare_facts_appear_only_when_present() -> None:
    assert "in doubt" not in told()
    assert "no decision none" in " ".join(told(no_decisions={}).split())
    assert "1 call that may have been billed, charged in full" in told(in_doubt=1)
    assert "repeated bars: 3, left out" in told(data=[fed(duplicates=3)])
    assert "reference market" not in told()
    beside = told(data=[fed(companion="ETHUSDT, from ethusdt-5m")])
    assert "reference market, because no other market was given: ETHUSDT, from ethusdt-5m" in beside
    assert "columns not read: rsi, macd" in told(data=[fed(unread=["rsi", "macd"])])
    assert "unclosed bars: 1 row, left out" in told(data=[fed(unclosed=1)])
    assert "late bars: 3, left out" in told(data=[fed(late=3)])
    assert "cancelled" not in told(cancelled={})
    refused = told(orders_refused={"balance": 2, "min_notional": 1})
    assert line_with(refused, "refused") == "refused 3 orders by the exchange (balance 2 · min_notional 1)"
    assert "open at the end" not in told(open_positions=[])
    assert line_with(told(working=[working()]), "still working").endswith(
        "buy 0.25 BTCUSDT limit, until 2023-03-29 01:00"
    )
    assert "quiet: 14 bars" in told(data=[fed(quiet=["14 bars without a trade"])])


def test_injected_fault_without_hits_is_shown() -> None:
    assert line_with(told(injected={"timeout": {}}), "injected timeout") == "injected timeout 0"


def test_injected_cut_is_called_truncated() -> None:
    words = told(injected={"cut": {"asked again, then accepted": 2}})

    assert line_with(words, "injected truncated") == "injected truncated 2: re-asked, accepted 2"


def test_only_first_five_gaps_are_listed() -> None:
    words = told(data=[fed(gaps=[f"hole {number}" for number in range(12)])])

    assert [f"hole {number}" in words for number in (0, 4, 5)] == [True, True, False]
    assert "and 7 more" in words


def test_single_bar_is_singular() -> None:
    assert " 1 bar," in told(data=[fed(bars=1)])


def test_digest_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(summary(report()), on=Console(width=80))

    [line] = [line for line in capsys.readouterr().out.splitlines() if "ab" * 32 in line]
    assert len(line) <= 80


def test_later_run_digest_is_explained() -> None:
    assert "has its own ids" not in told()
    assert "run 2 has its own ids, so its digest differs from those of earlier runs" in told(run_number=2)


def test_own_data_profit_not_in_sample() -> None:
    words = told(data=[fed(symbol="SOLUSDT", is_sample=False)])

    assert line_with(words, "out of sample") == "out of sample, SOLUSDT unknown: your own data"


def test_model_profit_split_by_training_cutoff() -> None:
    words = told(provider="recorded", model="claude-sonnet-5-5", knowledge={"in_sample": 7, "post_cutoff": 2})

    assert "in sample 7 · after the training cutoff 2" in words


def test_attempts_above_call_limit_are_explained() -> None:
    assert line_with(told(sent=4, max_calls=4), "calls allowed") == "calls allowed 4 (--max-calls)"
    assert "4 (--max-calls), without attempts that were refused or could not connect" in told(
        sent=5, max_calls=4
    )


def test_interruption_is_in_first_line() -> None:
    assert "interrupted after 1.2 s" in told(interrupted=True).splitlines()[0]


def test_run_without_equity_has_no_return() -> None:
    assert line_with(told(equity_start=0), "this run") == "this run -12.50 - +3.40 bps"


def test_risk_line_shows_performance_figures() -> None:
    moved = performance([100.0, 110.0, 99.0, 118.8], [100.0, 0.0, 50.0], bars_per_year=3)
    still = performance([100.0, 100.0], [0.0])

    assert line_with(told(performance=moved), "risk") == (
        "risk largest drawdown -10.00 % · per year, from 3 bars: return +18.80 %, Sharpe 0.76, Sortino 2.00, turnover 0.75"
    )
    assert "return +0.00 %, Sharpe -, Sortino -, turnover 0.00" in line_with(told(performance=still), "risk")
    assert "risk" not in told()


def test_yearly_risk_shows_factor() -> None:
    moved = performance([100.0] * 2808 + [96.02], [0.0] * 2808, bars_per_year=78 * 252)
    year = MarketYear(bars_per_session=78, sessions=252)

    assert line_with(told(performance=moved, year=year), "risk") == (
        "risk largest drawdown -3.98 % · per year (x 7: 252 sessions of 78 bars), from 2,808 bars: "
        "return -24.75 %, Sharpe -2.65, Sortino -2.65, turnover 0.00"
    )


def test_extreme_yearly_return_is_capped() -> None:
    lucky = performance([100.0, 101.0], [0.0], bars_per_year=10_000)
    beyond = performance([100.0, 101.0], [0.0], bars_per_year=1_000_000)

    assert "return above 10,000 %, Sharpe -" in line_with(told(performance=lucky), "risk")
    assert "return -, Sharpe -" in line_with(told(performance=beyond), "risk")


def test_largest_shortfall_is_first() -> None:
    words = told()

    assert line_with(words, "largest") == "largest shortfall +5.30 bps: buy 0.25 BTCUSDT"
    assert words.index("+5.30 bps: buy") < words.index("+1.40 bps: buy")


def test_no_fills_show_no_shortfall() -> None:
    words = told(shortfall=FillingCost(intents=[sent(None)]))

    assert line_with(words, "this run") == "this run -12.50 -0.12 % -"
    assert "intents filled" not in words


def test_next_steps_are_session_commands() -> None:
    assert next_steps(report())[0] == "agentic-trading trace why f-1 --store runs/demo"
    assert next_steps(report())[-1] == "agentic-trading replay run runs/demo --workers 8"


def test_next_steps_quote_their_folder() -> None:
    steps = next_steps(report(log=Path("a b") / "interactions.jsonl"))

    assert all("'a b'" in step for step in steps)


def test_next_steps_without_fill_omit_why() -> None:
    assert not any("why" in step for step in next_steps(report(first_fill_id="")))


def test_next_steps_list_denied_intents() -> None:
    listing = "agentic-trading trace list --all --kind intent.denied --store runs/demo"

    assert listing in next_steps(report(intents_rejected={"stop_loss": 2}))
    assert listing not in next_steps(report(intents_rejected={}))


def test_next_steps_include_run_number() -> None:
    assert "--run 2" in next_steps(report(run_number=2))[-1]


def test_escape_sequences_are_not_printed() -> None:
    assert "\x1b" not in told(skips={"\x1b[2Jgone": 1})


def test_model_summary_shows_share_and_limit() -> None:
    text = told(provider="local", model="smollm2-135m", sent=12, accepted=5, max_calls=12, cost_nusd=0)

    assert line_with(text, "accepted") == "accepted 5 of 12 attempts sent (42 %)"
    assert line_with(text, "calls allowed") == "calls allowed 12 (--max-calls)"
    assert line_with(text, "cost").endswith(
        "a local model is free and --budget-usd applies only to priced models"
    )


def test_run_without_attempts_has_no_share() -> None:
    assert "attempts sent" not in told(sent=0)
