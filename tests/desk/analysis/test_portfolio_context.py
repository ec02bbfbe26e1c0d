"""The account as evidence of a question."""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest

from agentic_trading.desk.analysis.context import evidence_by_layer, not_available
from agentic_trading.desk.analysis.judgement import Layer
from agentic_trading.desk.market.correlation import Close, ReferenceMarket
from tests.desk.analysis.build import holding, hours, market, portfolio, question


def test_a_size_loses_the_risk_at_its_stop_and_no_position_passes_the_largest() -> None:
    stops = [{"distance_pct": 0.5}, {"distance_pct": 2.0}]

    assert portfolio("100000").sizes_pct(stops) == [95.0, 50.0]
    assert portfolio("0").sizes_pct(stops) == [0.0, 0.0]


def test_an_account_without_positions_has_no_exposure_no_risk_and_nothing_to_go_with() -> None:
    figures = portfolio("100000").evidence("BTCUSDT", market().closes)

    assert (figures["risk_pct"], figures["exposure_pct"], figures["open_risk_pct"]) == (1.0, 0.0, 0.0)
    assert figures["not_available"] == {"correlation": "nothing else is held"}


def test_exposure_and_open_risk_are_shares_of_the_equity() -> None:
    held = holding("-40000", "500", market())

    figures = portfolio("50000", held, gross="40000").evidence("BTCUSDT", market().closes)

    assert (figures["exposure_pct"], figures["open_risk_pct"]) == (80.0, 1.0)


def test_a_position_without_a_stop_has_an_unknown_open_risk() -> None:
    figures = portfolio("50000", holding("40000", None, market())).evidence("BTCUSDT", market().closes)

    assert "open_risk_pct" not in figures
    assert figures["not_available"]["open_risk"] == "a position has no stop"


def test_without_equity_there_is_no_share_of_it() -> None:
    figures = portfolio("0", holding("40000", "1", market())).evidence("BTCUSDT", market().closes)

    assert set(figures) == {"risk_pct", "not_available"}


@pytest.mark.parametrize(("value", "expected"), [("20000", 1.0), ("-20000", -1.0)])
def test_the_same_market_under_another_name_goes_along_and_a_short_of_it_against(
    value: str, expected: float
) -> None:
    held = holding(value, "1", market(), "TWIN")

    figures = portfolio("100000", held).evidence("BTCUSDT", market().closes)

    assert figures["correlation"] == pytest.approx(expected)


def test_the_correlation_is_that_of_the_last_48_returns_with_the_weighted_ones_of_the_others() -> None:
    snapshot, other = market(), market().reference
    assert other is not None
    twin = holding("30000", "1", snapshot, "TWIN")
    short = replace(twin, symbol="ETHUSDT", value=Decimal(-50000), market=other)

    figures = portfolio("100000", twin, short).evidence("BTCUSDT", snapshot.closes)

    mine = np.diff(np.log([close.price for close in snapshot.closes]))[-48:]
    theirs = np.diff(np.log([close.price for close in other.closes]))[-48:]
    assert figures["correlation"] == pytest.approx(np.corrcoef(mine, 0.3 * mine - 0.5 * theirs)[0, 1])


def test_few_common_closes_give_no_correlation() -> None:
    young = ReferenceMarket("YOUNG", tuple(Close(close.at, close.price) for close in market().closes[-48:]))
    held = replace(holding("30000", "1", market()), symbol="YOUNG", market=young)

    figures = portfolio("100000", held).evidence("BTCUSDT", market().closes)

    assert figures["not_available"] == {"correlation": "needs 48 returns in common that move"}


def test_a_question_gives_the_account_and_says_what_of_it_is_missing() -> None:
    asked = question(portfolio=portfolio("100000"))
    content = evidence_by_layer(asked)[Layer.RISK].content

    assert content["book"] == {"exposure_pct": 0, "open_risk_pct": 0, "risk_pct": 1}
    assert [len(content[side]["size_pct"]) for side in ("long", "short")] == [
        len(content[side]["stops"]) for side in ("long", "short")
    ]
    assert not_available(asked)[Layer.RISK] == {"correlation": "nothing else is held"}


def test_a_question_without_an_account_says_so() -> None:
    asked = question()

    assert "book" not in evidence_by_layer(asked)[Layer.RISK].content
    assert not_available(asked)[Layer.RISK]["book"] == "no account is handed over"


def test_another_account_is_another_request() -> None:
    snapshot = hours()[100]

    first, second = (
        question(snapshot, portfolio=portfolio("100000", gross=gross)) for gross in ("0", "50000")
    )

    assert first.request_hash != second.request_hash
