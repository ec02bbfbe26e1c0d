"""The desk's events in a sentence, and the P&L of a trace."""

import re
from typing import Any

import pytest

from agentic_trading.desk.cli import renderers
from agentic_trading.desk.decisions import KINDS
from agentic_trading.llm.event import Event
from tests.build import event
from tests.event_bodies import BODIES, as_event

FILL: dict[str, Any] = {
    "fill_id": "f-1",
    "intent_id": "i-1",
    "order_id": "o-1",
    "symbol": "BTCUSDT",
    "side": "buy",
    "price": "20000",
    "quantity": "2",
    "fee": "10",
    "fee_currency": "USDT",
    "liquidity": "taker",
    "cause": "order",
    "time": "2026-01-02T00:05:00Z",
    "bar_open_time": "2026-01-02T00:00:00Z",
}


def fill(**changes: Any) -> Event:
    return event("order.filled", body={**FILL, **changes})


def test_every_kind_of_the_desk_has_a_sentence() -> None:
    assert set(renderers.SENTENCES) == set(renderers.NAMES) == {body.KIND for body in KINDS.bodies}
    for body in BODIES:
        if type(body) in KINDS.bodies:
            told = renderers.sentence(as_event(body))
            assert told is not None
            name, text, *_ = told
            assert name == renderers.NAMES[body.KIND]
            assert text
            assert "{" not in text


def test_values_of_sentences_exist_in_bodies() -> None:
    samples = {body.KIND: as_event(body).body for body in BODIES}

    parts = [(kind, part) for kind, each in renderers.SENTENCES.items() for part in each]
    for kind, part in [*parts, *renderers.DETAILS.items()]:
        for name in re.findall(r"\{(.*?)\}", part):
            place = samples[kind]
            for word in name.split("."):
                assert word in place, f"{kind}: {name}"
                place = place[word] or {}


def test_sentence_has_the_words_of_a_trader() -> None:
    assert renderers.sentence(fill(cause="stop_loss", price="27531.620", fee="40.5")) == [
        "fill",
        "buy 2 BTCUSDT at 27,531.620, fee 40.5 USDT, taker, by stop loss",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("stop_loss", "stop loss"),
        ("a_b c", "a_b c"),
        (1.498268142, "1.498"),
        (12, "12"),
        ("1e9999", "1e9999"),
        ("NaN", "NaN"),
        (True, "True"),
        (["a", "b"], "a, b"),
        ("2026-01-02T03:04:05Z", "2026-01-02 03:04"),
        ("2026-99-99", "2026-99-99"),
    ],
)
def test_values_are_readable(value: Any, text: str) -> None:
    told = renderers.sentence(event("analysis.skipped", body={"reason": value}))

    assert told == ["no question", text]


@pytest.mark.parametrize("body", [{}, {"reason": None}, {"reason": {"of": "x"}}, {"reason": []}])
def test_part_without_a_value_is_left_out(body: dict[str, Any]) -> None:
    assert renderers.sentence(event("analysis.skipped", body=body)) == ["no question", ""]


def test_unknown_kind_has_no_sentence() -> None:
    assert renderers.sentence(event("order.split")) is None


def test_profit_is_the_cash_of_closed_fills() -> None:
    closed = [fill(), fill(side="sell", price="20100", fee="11")]

    assert renderers.profit(closed) == ("+179.00 USDT", "2 fills, fees 21.00 USDT")
    assert renderers.profit([fill(side="sell"), fill(price="20100")]) == (
        "-220.00 USDT",
        "2 fills, fees 20.00 USDT",
    )


def test_open_position_has_no_profit() -> None:
    others = [fill(symbol=f"S{n}", side="sell") for n in range(5)]

    assert renderers.profit([fill(), fill(side="sell", quantity="0.5")]) == (
        "",
        "2 fills, fees 20.00 USDT. They leave +1.5 BTCUSDT",
    )
    assert renderers.profit(others)[1].endswith("They leave -2 S0, -2 S1, -2 S2 and 2 more")


def test_profit_is_exact() -> None:
    third = [fill(quantity="0.00000001", fee="0") for _ in range(3)]
    back = fill(side="sell", quantity="0.00000003", price="20000.00000001", fee="0")

    assert renderers.profit([*third, back]) == ("+0.00 USDT", "4 fills, fees 0.00 USDT")


@pytest.mark.parametrize(
    ("fills", "note"),
    [
        ([], ""),
        ([event("order.canceled")], ""),
        ([fill(price="none")], "a fill cannot be read"),
        ([fill(side="both")], "a fill cannot be read"),
        ([fill(), fill(side="sell", fee_currency="EUR")], "2 fills with fees in several currencies"),
    ],
)
def test_trace_without_a_sum_has_no_profit(fills: list[Event], note: str) -> None:
    assert renderers.profit(fills) == ("", note)
