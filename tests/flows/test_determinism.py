"""The same inputs give the same decision log, whoever answers first; other inputs give another one."""

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from agentic_trading.desk.market.bar import Bar
from tests.flows.sessions import (
    BARS,
    FAULTS,
    LOADED,
    SAMPLES,
    Shuffled,
    csv_of,
    decided,
    evening,
    lines_of,
    ran,
    rules,
    with_faults,
    write,
)

BTC = LOADED["btcusdt-5m"][:BARS]


@pytest.mark.parametrize("inject", ["", FAULTS], ids=["sound", "faulty"])
async def test_worker_count_does_not_change_decision_log(inject: str, tmp_path: Path) -> None:
    alone = await ran(tmp_path / "one", workers=1, inject=inject)
    many = await ran(tmp_path / "eight", workers=8, inject=inject)

    assert decided(tmp_path / "one") == decided(tmp_path / "eight")
    assert alone.digest == many.digest
    assert min(alone.fills, alone.intents, len(alone.decisions)) > 0
    assert bool(alone.no_decisions) is bool(inject)


@pytest.mark.parametrize("seed", ["b", "c"])
async def test_answer_order_does_not_change_decisions(seed: str) -> None:
    in_order, shuffled = Shuffled(rules(), seed), Shuffled(rules(), seed)

    plain = await evening(in_order, workers=1)
    mixed = await evening(shuffled, workers=8)

    assert shuffled.answered != shuffled.asked
    assert in_order.answered == in_order.asked
    assert mixed.log == plain.log
    assert {line["kind"] for line in plain.lines} >= {
        "analysis.triggered",
        "call",
        "analysis.assessed",
        "intent.approved",
        "order.filled",
    }


async def test_faults_hit_same_calls_in_any_order() -> None:
    plain = await evening(with_faults(rules()), workers=1)
    mixed = await evening(Shuffled(with_faults(rules())), workers=8)

    assert mixed.log == plain.log
    assert {line["verdict"] for line in plain.lines if line["kind"] == "call"} > {"accepted"}


@pytest.mark.soak  # the tests above show it on some of the bars
@pytest.mark.timeout(60)
async def test_all_bars_digest_ignores_workers_and_order() -> None:
    plain = await evening(with_faults(rules()), workers=1, most_bars=None)
    mixed = await evening(Shuffled(with_faults(rules())), workers=8, most_bars=None)

    assert mixed.digest == plain.digest
    assert plain.played.bars_done == sum(map(len, LOADED.values()))
    assert plain.played.companions == {}
    assert plain.played.counters.fills > 0


async def test_bars_from_file_match_sample_digest(tmp_path: Path) -> None:
    write(tmp_path / "btcusdt.csv", csv_of(BTC))

    shipped = await ran(tmp_path / "sample", data=SAMPLES[:1])
    given = await ran(tmp_path / "file", data=(str(tmp_path / "btcusdt.csv"),))

    assert given.digest == shipped.digest
    assert given.data[0].name != shipped.data[0].name


def with_one_digit_changed(bars: Sequence[Bar], at: int, field: str) -> list[Bar]:
    """Return the bars with the last digit of one price one higher; the bar still agrees with itself."""
    bar = bars[at]
    price = getattr(bar, field)
    changed = price + Decimal((0, (1,), price.as_tuple().exponent))
    fields = {**bar.model_dump(), field: changed, "high": max(bar.high, changed)}
    return [*bars[:at], Bar.model_validate(fields), *bars[at + 1 :]]


@pytest.mark.parametrize("field", ["close", "high"])
async def test_single_digit_change_alters_later_log(field: str) -> None:
    bars = {"btcusdt-5m": BTC}
    was = await evening(bars=bars)
    calls = [line for line in was.lines if line["kind"] == "call" and line["workflow"] == "analysis"]
    asked_at = {bar.close_time.isoformat().replace("+00:00", "Z"): place for place, bar in enumerate(BTC)}
    place = asked_at[calls[len(calls) // 2]["as_of"]]

    changed = await evening(bars={"btcusdt-5m": with_one_digit_changed(BTC, place, field)})

    before = [line for line in was.log if lines_of(line)[0]["as_of"] < calls[len(calls) // 2]["as_of"]]
    assert changed.log != was.log
    assert changed.log[: len(before)] == before
