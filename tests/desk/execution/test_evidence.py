"""The evidence of an execution envelope, computed by hand."""

from decimal import Decimal

import pytest

from agentic_trading.canonical import to_json_value
from agentic_trading.desk.execution.agent import execution_evidence
from agentic_trading.desk.market.errors import NoBarsError
from tests.desk.trade import bar

BARS = [
    bar(0, "100 101 99 100", "10"),
    bar(1, "100 102 100 101.5", "20"),
    bar(2, "101.5 102 101 102", "60"),
]


def test_volume_and_range_are_exact() -> None:
    bars, volume, volatility = execution_evidence("BTCUSDT", BARS, Decimal("0.3"), Decimal(1))

    assert to_json_value(volume.content) == {
        "bars": 3,
        "without_trades": 0,
        "mean": "30.000000",
        "median": "20.000000",
        "last": "60",
        "order_to_mean": "0.010000",
    }
    assert to_json_value(volatility.content) == {
        "bars": 3,
        "without_trades": 0,
        "mean_range_bps": "165.03",  # 200, 197.0443 and 98.0392
        "last_range_bps": "98.04",
        "widest_range_bps": "200.00",
        "move_bps": "200.00",
        "spread_bps": "1",
    }
    assert to_json_value(bars.content)["rows"][-1] == [
        "2026-01-02T00:10:00Z",
        "101.5",
        "102",
        "101",
        "102",
        "60",
    ]


def test_only_last_six_bars_shown() -> None:
    many = [bar(number, "100 101 99 100") for number in range(10)]

    (shown, *_) = execution_evidence("BTCUSDT", many, Decimal(1), Decimal(1))

    assert len(shown.content["rows"]) == 6


def test_zero_volume_has_no_order_share() -> None:
    still = [bar(0, "100 100 100 100", "0")]

    (_, volume, _) = execution_evidence("BTCUSDT", still, Decimal(1), Decimal(1))

    assert volume.content["order_to_mean"] is None


def test_evidence_without_bars_raises() -> None:
    with pytest.raises(NoBarsError):
        execution_evidence("BTCUSDT", [], Decimal(1), Decimal(1))


def test_quiet_bars_excluded_from_averages() -> None:
    halted = [*BARS, *(bar(number, "102 102 102 102", "0") for number in (3, 4, 5))]

    (_, volume, volatility) = execution_evidence("BTCUSDT", halted, Decimal("0.3"), Decimal(1))

    assert to_json_value(volume.content) == {
        "bars": 6,
        "without_trades": 3,
        "mean": "30.000000",
        "median": "20.000000",
        "last": "0",
        "order_to_mean": "0.010000",
    }
    assert volatility.content["mean_range_bps"] == Decimal("165.03")
    assert volatility.content["last_range_bps"] == 0
