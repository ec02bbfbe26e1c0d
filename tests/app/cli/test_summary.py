"""The summary of a run says what a trader asks, and what to type next."""

from typing import Any

import pytest
from rich.console import Console

from agentic_trading.app.cli.summary import next_steps, summary
from tests.app.cli.reports import fed, report


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
        ("not asked", "not asked no_trigger 200"),
        ("attempts", "attempts 21: accepted 17 · timeout 4"),
        ("injected timeout", "injected timeout 4: retried, then accepted 3 · no decision 1"),
        ("tokens", "tokens 12,345 in · 678 out"),
        ("cost", "cost 0.001235 of 5.000000 USD (0.0 %)"),
        ("intents", "intents 4 · refused by pre-trade limits 1 (max_position 1)"),
        ("sent", "sent orders 3 · fills 5 · fees 1.25"),
        ("this run", "this run -12.50 -0.12 %"),
        ("market-now", "market-now on the same orders -15.75 -0.16 %"),
        ("buy and hold", "buy and hold +310.00 +3.10 %"),
        ("log", "log runs/demo/interactions.jsonl"),
        ("digest", f"digest sha256:{'ab' * 32}"),
    ],
)
def test_a_fact_stands_on_its_own_line(start: str, line: str) -> None:
    assert line_with(told(), start) == line


def test_what_happens_rarely_is_told_only_when_it_did() -> None:
    assert "in doubt" not in told()
    assert "no decision none" in " ".join(told(no_decisions={}).split())
    assert "2 calls may have been billed unseen" in told(in_doubt=2)
    assert "repeated bars: 3, left out" in told(data=[fed(duplicates=3)])


def test_the_profit_of_rules_is_called_in_sample_and_without_a_cutoff() -> None:
    words = told()

    assert "no training cutoff (rules)" in words
    assert "in sample" in words


def test_the_profit_of_a_model_is_told_apart_by_its_training_cutoff() -> None:
    words = told(provider="recorded", model="claude-sonnet-5-5", knowledge={"in_sample": 7, "post_cutoff": 2})

    assert "in sample 7 · after the training cutoff 2" in words


def test_an_interrupted_run_says_so_at_the_top() -> None:
    assert "interrupted after 1.2 s" in told(interrupted=True).splitlines()[0]


def test_a_run_without_equity_has_no_return() -> None:
    assert line_with(told(equity_start=0), "this run") == "this run -12.50 -"


def test_the_next_steps_are_commands_for_this_session() -> None:
    assert next_steps(report())[0] == "agentic-trading trace why f-1 --store runs/demo"
    assert next_steps(report())[-1] == "agentic-trading replay run runs/demo --workers 8"


def test_without_a_fill_there_is_no_fill_to_ask_about() -> None:
    assert not any("why" in step for step in next_steps(report(first_fill_id="")))


def test_a_later_run_is_named_for_the_replay() -> None:
    assert "--run 2" in next_steps(report(run_number=2))[-1]


def test_words_from_outside_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in told(skips={"\x1b[2Jgone": 1})
