"""The benchmark of reading measures what it says, and judges by it."""

import json
from typing import Any

import pytest

from agentic_trading.structured.outcome import ParserException, UnreadableError
from benchmarks import ours_reading
from benchmarks.peers.failures import FAILURES
from benchmarks.peers.order import EXPECTED, ORDER, TEXTS
from benchmarks.peers.reader import Timed, timed
from benchmarks.structured import BROKEN, HAZARDS, Bill, Bills, Row, judged, rows

ONCE: Bills = {"agentic_trading": dict.fromkeys(FAILURES, Bill(1, "right"))}


def measured(**cpu_us: float) -> list[Row]:
    """Return the rows with 10 us for everything of ours and 100 us for what others do, but for what is said here."""
    table = rows()
    for row in table:
        for text in row.texts:
            us = cpu_us.get(
                row.contender if row is not table[3] else "floor",
                10.0 if row.contender == "agentic_trading" else 100.0,
            )
            row.rounds[text] = [Timed(us, 1.0)]
    return table


def test_every_text_means_the_order() -> None:
    assert json.loads(TEXTS["plain"]) == EXPECTED
    assert all(ORDER in TEXTS[name] for name in ("fenced", "prose"))
    for name in BROKEN:
        with pytest.raises(json.JSONDecodeError):
            json.loads(TEXTS[name])


@pytest.mark.parametrize(
    "way", ["analysis", "planning", "strict", "read_json", "safe floor", "json", "orjson"]
)
def test_own_ways_read_the_order(way: str) -> None:
    def read(text: str) -> Any:
        return ours_reading.WAYS[way]("full")(text)

    assert timed(read, ORDER, 1, lambda value: value).right == 1
    assert timed(read, "{", 1, lambda value: value).right == 0


@pytest.mark.parametrize("hazard", HAZARDS)
def test_own_ways_refuse_each_hazard(hazard: str) -> None:
    for way in ("planning", "strict", "read_json"):
        with pytest.raises((ParserException, UnreadableError, ours_reading.RefusedError)):
            ours_reading.WAYS[way]("ticket")(HAZARDS[hazard])


def test_billed_counts_calls_and_outcome() -> None:
    assert ours_reading.billed({"kind": "none"}) == {"calls": 1, "outcome": "right"}
    assert ours_reading.billed({"kind": "refusal"}) == {"calls": 1, "outcome": "refusal"}
    assert ours_reading.billed({"kind": "wrong enum, then right"}) == {"calls": 2, "outcome": "right"}


def test_worse_ratios_break_the_promise() -> None:
    assert judged(measured(), ONCE)
    assert not judged(measured(floor=7.0), ONCE)
    assert not judged(measured(instructor=24.0), ONCE)
    assert not judged(measured(json_repair=9.0), ONCE)


def test_missed_order_breaks_the_promise() -> None:
    table = measured()
    table[0].rounds["prose"] = [Timed(10.0, 0.0)]

    assert not judged(table, ONCE)


def test_accepted_hazard_breaks_the_promise() -> None:
    table = measured()
    table[1].takes = ["NaN"]

    assert not judged(table, ONCE)


@pytest.mark.parametrize("bill", [Bill(2, "right"), Bill(1, "WRONG VALUE")])
def test_extra_call_or_wrong_value_breaks_promise(bill: Bill) -> None:
    bills = {"agentic_trading": {**ONCE["agentic_trading"], "prose around": bill}}

    assert not judged(measured(), bills)


def test_unavailable_peers_are_ignored() -> None:
    table = measured()
    for row in table:
        if row.contender != "agentic_trading":
            row.unavailable = "cannot be installed"

    assert judged(table, ONCE)
