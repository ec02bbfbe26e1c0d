"""The account as evidence of a question."""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest

from agentic_trading.desk.analysis.context import evidence_by_layer, not_available
from agentic_trading.desk.analysis.judgement import Layer
from agentic_trading.desk.market.correlation import Close, ReferenceMarket
from tests.desk.analysis.build import holding, hours, market, portfolio, question


def test_size_limited_by_risk_and_maximum() -> None:
    stops = [{"distance_pct": 0.5}, {"distance_pct": 2.0}]

    assert portfolio("100000").sizes_pct(stops) == [95.0, 50.0]
    assert portfolio("0").sizes_pct(stops) == [0.0, 0.0]


def test_flat_account_has_zero_exposure() -> None:
    figures = portfolio("100000").evidence("BTCUSDT", market().closes)

    assert (figures["risk_pct"], figures["exposure_pct"], figures["open_risk_pct"]) == (1.0, 0.0, 0.0)
    assert figures["not_available"] == {"correlation": "nothing else is held"}


def test_exposure_and_risk_are_equity_shares() -> None:
    held = holding("-40000", "500", market())

    figures = portfolio("50000", held, gross="40000").evidence("BTCUSDT", market().closes)

    assert (figures["exposure_pct"], figures["open_risk_pct"]) == (80.0, 1.0)


def test_position_without_stop_has_unknown_risk() -> None:
    figures = portfolio("50000", holding("40000", None, market())).evidence("BTCUSDT", market().closes)

    assert "open_risk_pct" not in figures
    assert figures["not_available"]["open_risk"] == "a position has no stop"


def test_zero_equity_has_no_shares() -> None:
    figures = portfolio("0", holding("40000", "1", market())).evidence("BTCUSDT", market().closes)

    assert set(figures) == {"risk_pct", "not_available"}


@pytest.mark.parametrize(("value", "expected"), [("20000", 1.0), ("-20000", -1.0)])
def test_identical_market_correlates_by_position_sign(value: str, expected: float) -> None:
    held = holding(value, "1", market(), "TWIN")

    figures = portfolio("100000", held).evidence("BTCUSDT", market().closes)

    assert figures["correlation"] == pytest.approx(expected)


def test_correlation_weights_last_48_returns() -> None:
    snapshot, other = market(), market().reference
    assert other is not None
    twin = holding("30000", "1", snapshot, "TWIN")
    short = replace(twin, symbol="ETHUSDT", value=Decimal(-50000), market=other)

    figures = portfolio("100000", twin, short).evidence("BTCUSDT", snapshot.closes)

    mine = np.diff(np.log([close.price for close in snapshot.closes]))[-48:]
    theirs = np.diff(np.log([close.price for close in other.closes]))[-48:]
    assert figures["correlation"] == pytest.approx(np.corrcoef(mine, 0.3 * mine - 0.5 * theirs)[0, 1])


def test_few_common_closes_omit_correlation() -> None:
    young = ReferenceMarket("YOUNG", tuple(Close(close.at, close.price) for close in market().closes[-48:]))
    held = replace(holding("30000", "1", market()), symbol="YOUNG", market=young)

    figures = portfolio("100000", held).evidence("BTCUSDT", market().closes)

    assert figures["not_available"] == {"correlation": "needs 48 returns in common that move"}


def test_question_includes_account_and_missing_parts() -> None:
    asked = question(portfolio=portfolio("100000"))
    content = evidence_by_layer(asked)[Layer.RISK].content

    assert content["book"] == {"exposure_pct": 0, "open_risk_pct": 0, "risk_pct": 1}
    assert [len(content[side]["size_pct"]) for side in ("long", "short")] == [
        len(content[side]["stops"]) for side in ("long", "short")
    ]
    assert not_available(asked)[Layer.RISK] == {"correlation": "nothing else is held"}


def test_question_without_account_reports_absence() -> None:
    asked = question()

    assert "book" not in evidence_by_layer(asked)[Layer.RISK].content
    assert not_available(asked)[Layer.RISK]["book"] == "no account is handed over"


def test_account_change_alters_request_hash() -> None:
    snapshot = hours()[100]

    first, second = (
        question(snapshot, portfolio=portfolio("100000", gross=gross)) for gross in ("0", "50000")
    )

    assert first.request_hash != second.request_hash
