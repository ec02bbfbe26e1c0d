"""The question to the model, from a real market."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from agentic_trading.canonical import canonical_bytes
from agentic_trading.desk.analysis.context import Context, Limits
from agentic_trading.desk.analysis.evidence import MEASURES, layer_evidence
from agentic_trading.desk.analysis.judgement import Layer
from agentic_trading.desk.analysis.prompts import CMT_ASSESSMENT_PROMPT
from agentic_trading.desk.exchange import Position
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.errors import UnclosedBarError
from agentic_trading.desk.market.samples import load_sample
from agentic_trading.desk.market.snapshot import BASE, MarketView
from agentic_trading.desk.market.triggers import Trigger, TriggerKind
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.errors import LookAheadError
from tests.desk.analysis.build import hours, market, question

HELD = Position(symbol="BTCUSDT", quantity=Decimal("-0.05"), average_price=Decimal("27950.10"))


def leaves(value: Any) -> Iterator[Any]:
    """Yield every value in nested JSON that is not itself an object or array."""
    match value:
        case dict():
            for inner in value.values():
                yield from leaves(inner)
        case list():
            for inner in value:
                yield from leaves(inner)
        case _:
            yield value


def with_floats(value: Any) -> Any:
    """Return nested JSON with every int as a float."""
    match value:
        case dict():
            return {name: with_floats(inner) for name, inner in value.items()}
        case list():
            return [with_floats(inner) for inner in value]
        case int():
            return float(value)
        case _:
            return value


def test_equal_markets_give_equal_requests_whatever_the_ids() -> None:
    first, second = question(seed="first"), question(seed="second")

    assert first.envelope_id != second.envelope_id
    assert first.request_hash == second.request_hash


@pytest.mark.parametrize(
    "other",
    [
        question(market(121)),
        question(position=HELD),
        question(limits=Limits(max_distance_atr=5)),
        question(trigger=Trigger(TriggerKind.THESIS_DUE, "assessed 12 bars of 1h ago")),
    ],
    ids=["bar", "position", "limits", "trigger"],
)
def test_another_bar_position_limit_or_trigger_is_another_request(other: object) -> None:
    assert question().request_hash != getattr(other, "request_hash", None)


def test_a_question_says_what_it_is_about_and_as_of_when() -> None:
    asked, snapshot = question(), market()

    assert asked.workflow is EnvelopeWorkflow.ANALYSIS
    assert (asked.subject, asked.step) == ("BTCUSDT", "cmt")
    assert asked.as_of == asked.context_as_of == snapshot.frames[Timeframe.H1].close_time
    assert asked.instructions == CMT_ASSESSMENT_PROMPT.text
    assert asked.prompt_version == CMT_ASSESSMENT_PROMPT.version
    assert asked.expected_output_schema["$id"] == "cmt_assessment.v1"


def test_each_layer_has_its_evidence_known_since_the_newest_bar() -> None:
    asked = question()

    assert [item.source for item in asked.retrieved_evidence] == [f"layers/{layer}" for layer in Layer]
    assert {item.available_at for item in asked.retrieved_evidence} == {market().available_at}


def test_the_last_close_is_told_digit_for_digit() -> None:
    assert question().context["last_close"] == str(market().frames[BASE].last.bar.close)


def test_an_open_position_is_told() -> None:
    context = Context.model_validate(question(position=HELD).context)

    assert context.position == HELD


def test_without_a_position_there_is_none_in_the_context() -> None:
    assert "position" not in question().context
    assert Context.model_validate(question().context).position is None


def test_a_market_with_a_bar_from_after_its_moment_fails_at_build() -> None:
    early = replace(market(), as_of=market().as_of - timedelta(seconds=1))

    with pytest.raises(LookAheadError, match="context"):
        question(early)


def test_a_bar_that_has_not_closed_never_gets_into_a_snapshot() -> None:
    bar = load_sample("btcusdt-5m")[0]
    view = MarketView("BTCUSDT")

    with pytest.raises(UnclosedBarError):
        view.push(bar, as_of=bar.close_time - timedelta(seconds=1))


@pytest.mark.parametrize("sample", ["btcusdt-5m", "ethusdt-5m"])
def test_context_and_evidence_stay_below_four_kilobytes(sample: str) -> None:
    warm = hours(sample)[26::3]

    sizes = [
        len(asked.context_json) + sum(map(len, asked.evidence_json))
        for asked in (question(snapshot, position=HELD) for snapshot in warm)
    ]

    assert max(sizes) < 4_000


@pytest.mark.parametrize("layer", list(MEASURES))
def test_a_row_ends_at_the_longest_timeframe_that_has_the_measure(layer: Layer) -> None:
    for snapshot in hours()[26::10]:
        frames = snapshot.layer_inputs()[layer]["timeframes"]
        told = layer_evidence(snapshot)[layer]

        assert told["of"] == list(frames)
        for measure in MEASURES[layer]:
            row = told[measure]
            rest = [None] * (len(told["of"]) - len(row))
            assert row[-1:] != [None]
            assert [*row, *rest] == [frame.get(measure) for frame in frames.values()]


def test_a_measure_that_a_shorter_timeframe_lacks_keeps_its_place() -> None:
    snapshot = market()
    short, longer = Timeframe.M5, Timeframe.H4
    momentum = replace(snapshot.frames[short].momentum, percent_b=None)
    flat = replace(snapshot.frames[short], momentum=momentum)

    told = layer_evidence(replace(snapshot, frames={**snapshot.frames, short: flat}))[Layer.INDICATORS]

    assert told["percent_b"][0] is None
    assert len(told["percent_b"]) == told["of"].index(longer) + 1


@pytest.mark.parametrize("sample", ["btcusdt-5m", "ethusdt-5m"])
def test_a_whole_number_is_an_int_and_the_bytes_are_those_of_the_float(sample: str) -> None:
    for snapshot in hours(sample)[26::5]:
        evidence = {layer.value: told for layer, told in layer_evidence(snapshot).items()}

        assert not any(isinstance(leaf, float) and leaf.is_integer() for leaf in leaves(evidence))
        assert canonical_bytes(evidence) == canonical_bytes(with_floats(evidence))


def test_what_no_source_gives_is_named() -> None:
    evidence = layer_evidence(market())

    assert evidence[Layer.INDICATORS]["not_available"] == {"market_breadth": "no source"}
    assert evidence[Layer.VOLATILITY]["not_available"] == {"implied_volatility": "no source"}


def test_a_timeframe_without_a_closed_bar_is_named_and_has_no_place() -> None:
    evidence = layer_evidence(market(20))

    assert evidence[Layer.TREND]["of"] == ["5m", "15m", "1h", "4h"]
    assert evidence[Layer.TREND]["not_available"] == {"1d": "no closed bar yet"}


def test_numbers_are_those_of_the_snapshot() -> None:
    snapshot = market()
    inputs, evidence = snapshot.layer_inputs(), layer_evidence(snapshot)

    hour = inputs["indicators"]["timeframes"]["1h"]
    assert evidence[Layer.INDICATORS]["rsi_14"][2] == hour["rsi_14"]
    assert evidence[Layer.LEVELS]["above"] == inputs["levels"]["nearest"]["above"]


def test_the_trend_tells_which_bars_have_a_hole_and_says_nothing_where_none_has() -> None:
    holed = next(now for now in hours() if not now.frames[now.decision].last.complete)

    assert layer_evidence(holed)[Layer.TREND]["incomplete"] == [
        "15m: 2 of 3 bars",
        "1h: 8 of 12 bars",
    ]
    assert "incomplete" not in layer_evidence(market(20))[Layer.TREND]
