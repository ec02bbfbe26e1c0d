"""The cost of inference is in dollars, and is converted exactly or not at all."""

from decimal import Decimal

import pytest

from agentic_trading.desk.inference import InferenceRate, rate_for
from agentic_trading.platform.errors import OptionError


def test_cost_is_converted_exactly() -> None:
    rate = InferenceRate.parse("USDEUR=0.91")

    assert rate.cost(1) == Decimal("0.00000000091")
    assert rate.net(Decimal("-4343.48"), 530_400_000) == Decimal("-4343.962664")


@pytest.mark.parametrize("currency", ["USD", "USDT"])
def test_dollars_count_as_dollars(currency: str) -> None:
    rate = rate_for(currency)

    assert rate is not None
    assert rate.net(Decimal(10), 2_500_000_000) == Decimal("7.5")


def test_other_currency_has_no_assumed_rate() -> None:
    given = InferenceRate("EUR", Decimal("0.91"))

    assert rate_for("EUR") is None
    assert rate_for("EUR", given) == given


def test_given_rate_replaces_assumed_one() -> None:
    given = InferenceRate.parse("USDUSDT=0.9995")

    assert rate_for("USDT", given) == given


@pytest.mark.parametrize(
    ("currency", "allowed"),
    [
        ("USD", "no rate"),
        ("USDT", r"a rate such as USDUSDT=0\.9995, or no rate"),
        ("JPY", r"a rate such as USDJPY=0\.91"),
    ],
)
def test_rate_of_other_currency_is_refused(currency: str, allowed: str) -> None:
    with pytest.raises(
        OptionError,
        match=rf"^--inference-rate is USDEUR=0\.91, and the P&L is in {currency}\. Allowed: {allowed}$",
    ):
        rate_for(currency, InferenceRate("EUR", Decimal("0.91")))


def test_dollar_costs_one_dollar() -> None:
    one = InferenceRate.parse("USDUSD=1.0")

    assert rate_for("USD", one) == one
    with pytest.raises(
        OptionError, match=r"^--inference-rate is USDUSD=2, and the P&L is in USD\. Allowed: no rate$"
    ):
        rate_for("USD", InferenceRate.parse("USDUSD=2"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0.91",
        "EURUSD=1.1",
        "USDEUR=0",
        "USDEUR=-1",
        "USDEUR=nan",
        "USDEUR=1e3",
        "USDeur=1",
        "USDEUR=0.91 ",
    ],
)
def test_malformed_rate_shows_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a rate of one US dollar\. Use a rate such as USDEUR=0\.91"):
        InferenceRate.parse(text)
