"""The trades that an answer may choose from."""

from decimal import Decimal

import pytest

from agentic_trading.desk.analysis.context import Context
from agentic_trading.desk.analysis.plan import candidates_of, plan_prices
from tests.desk.analysis.build import hours, judgement, plan, question


@pytest.mark.parametrize("rising", [True, False])
def test_stops_and_targets_on_correct_sides(*, rising: bool) -> None:
    sign = 1 if rising else -1

    for snapshot in hours()[26::10]:
        asked = question(snapshot)
        context, named = Context.model_validate(asked.context), candidates_of(asked, rising=rising)

        assert all(sign * (context.last_close - price) > 0 for price in named.stops.values())
        assert all(sign * (price - context.last_close) > 0 for price in named.targets.values())
        assert named.entries["pullback"] == context.last_close - sign * context.atr / 2
        assert {"atr_1.0", "atr_1.5", "atr_2.0", "atr_3.0"} <= set(named.stops)
        assert {"atr_2.0", "atr_3.0", "atr_4.0", "atr_6.0"} <= set(named.targets)


def test_rising_levels_sorted_nearest_first() -> None:
    named = candidates_of(question(), rising=True)
    levels = [price for name, price in named.targets.items() if name.startswith("level_")]

    assert levels == sorted(levels)


def test_plan_prices_accept_names_and_numbers() -> None:
    asked = question()
    named = candidates_of(asked, rising=True)

    by_name = plan_prices(asked, judgement(trade_plan=plan("pullback", "atr_2.0", "level_1")))
    by_price = plan_prices(asked, judgement(trade_plan=plan("27000", "26000.5", "29000")))

    assert by_name is not None
    assert by_price is not None
    assert (by_name.entry, by_name.stop) == (named.entries["pullback"], named.stops["atr_2.0"])
    assert by_name.target == named.targets["level_1"]
    assert by_price.stop == Decimal("26000.5")


def test_neutral_answer_has_no_prices() -> None:
    assert plan_prices(question(), judgement(direction="neutral")) is None
