"""The question to the model, from a real market."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from agentic_trading.canonical import canonical_bytes
from agentic_trading.desk.analysis.analyst import (
    CMT_ASSESSMENT_PROMPT,
    MEASURES,
    evidence_timeframes,
    layer_evidence,
)
from agentic_trading.desk.analysis.context import Context, TradeLimits, available_layers, not_available
from agentic_trading.desk.analysis.judgement import Layer
from agentic_trading.desk.exchange import Position
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.errors import UnclosedBarError
from agentic_trading.desk.market.samples import load_sample
from agentic_trading.desk.market.snapshot import BASE, MarketSnapshot, MarketView
from agentic_trading.desk.market.triggers import Trigger, TriggerKind
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import LookAheadError
from tests.desk.analysis.build import holding, hours, market, portfolio, question, record

HELD = Position(symbol="BTCUSDT", quantity=Decimal("-0.05"), average_price=Decimal("27950.10"))


def evidence_of(snapshot: MarketSnapshot) -> dict[Layer, Any]:
    """Return the evidence of an agent with a record."""
    return layer_evidence(snapshot, record())


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


def test_equal_markets_give_equal_hashes() -> None:
    first, second = question(seed="first"), question(seed="second")

    assert first.envelope_id != second.envelope_id
    assert first.request_hash == second.request_hash


@pytest.mark.parametrize(
    "asked",
    [
        lambda: question(market(121)),
        lambda: question(position=HELD),
        lambda: question(limits=TradeLimits(max_distance_atr=5)),
        lambda: question(trigger=Trigger(TriggerKind.THESIS_DUE, "assessed 12 bars of 1h ago")),
    ],
    ids=["bar", "position", "limits", "analysis.triggered"],
)
def test_input_change_alters_request_hash(asked: Callable[[], LLMEnvelope]) -> None:
    assert question().request_hash != asked().request_hash


def test_question_has_subject_and_as_of() -> None:
    asked, snapshot = question(), market()

    assert asked.workflow is EnvelopeWorkflow.ANALYSIS
    assert (asked.subject, asked.step) == ("BTCUSDT", "cmt")
    assert asked.as_of == asked.context_as_of == snapshot.frames[Timeframe.H1].close_time
    assert asked.instructions == CMT_ASSESSMENT_PROMPT.text
    assert asked.prompt_version == CMT_ASSESSMENT_PROMPT.version
    assert asked.expected_output_schema["$id"] == "cmt_assessment.v2"


def test_each_layer_has_timestamped_evidence() -> None:
    asked = question()

    assert [item.source for item in asked.retrieved_evidence] == [f"layers/{layer}" for layer in Layer]
    assert {item.available_at for item in asked.retrieved_evidence} == {market().available_at}


def test_last_close_keeps_all_digits() -> None:
    assert question().context["last_close"] == str(market().frames[BASE].last.bar.close)


def test_context_contains_open_position() -> None:
    context = Context.model_validate(question(position=HELD).context)

    assert context.position == HELD


def test_context_without_position_omits_field() -> None:
    assert "position" not in question().context
    assert Context.model_validate(question().context).position is None


def test_question_with_future_bar_is_rejected() -> None:
    early = replace(market(), as_of=market().as_of - timedelta(seconds=1))

    with pytest.raises(LookAheadError, match="context"):
        question(early)


def test_unclosed_bar_never_enters_snapshot() -> None:
    bar = load_sample("btcusdt-5m")[0]
    view = MarketView("BTCUSDT")

    with pytest.raises(UnclosedBarError):
        view.push(bar, as_of=bar.close_time - timedelta(seconds=1))


@pytest.mark.parametrize("sample", ["btcusdt-5m", "ethusdt-5m"])
def test_context_and_evidence_below_four_kilobytes(sample: str) -> None:
    warm, track = hours(sample)[26::3], record()

    sizes = [
        len(asked.context_json) + sum(map(len, asked.evidence_json))
        for asked in (
            question(
                snapshot,
                position=HELD,
                record=track,
                portfolio=portfolio("100000", holding("54321", "777", snapshot, "OTHER"), gross="54321"),
            )
            for snapshot in warm
        )
    ]

    assert max(sizes) < 4_000


@pytest.mark.parametrize("layer", list(MEASURES))
def test_row_ends_at_longest_available_timeframe(layer: Layer) -> None:
    for snapshot in hours()[26::10]:
        frames = snapshot.layer_inputs()[layer]["timeframes"]
        content = evidence_of(snapshot)[layer]

        for measure in MEASURES[layer]:
            row = content[measure]
            present = [measure in frames[timeframe] for timeframe in evidence_timeframes(snapshot)]
            assert row[-1:] != [None]
            assert [value is not None for value in row] == present[: len(row)]
            assert not any(present[len(row) :])


def test_shortest_timeframe_is_below_decision() -> None:
    assert evidence_timeframes(market()) == (Timeframe.M15, Timeframe.H1, Timeframe.H4, Timeframe.D1)
    assert evidence_timeframes(hours(decision=Timeframe.M15)[40])[0] is Timeframe.M5


def test_missing_shorter_measure_keeps_place() -> None:
    snapshot = market()
    short, longer = Timeframe.M15, Timeframe.H4
    momentum = replace(snapshot.frames[short].momentum, percent_b=None)
    flat = replace(snapshot.frames[short], momentum=momentum)

    content = evidence_of(replace(snapshot, frames={**snapshot.frames, short: flat}))[Layer.INDICATORS]

    assert content["percent_b"][0] is None
    assert len(content["percent_b"]) == evidence_timeframes(snapshot).index(longer) + 1


@pytest.mark.parametrize("sample", ["btcusdt-5m", "ethusdt-5m"])
def test_integral_numbers_serialize_like_floats(sample: str) -> None:
    for snapshot in hours(sample)[26::5]:
        evidence = {layer.value: content for layer, content in evidence_of(snapshot).items()}

        assert not any(isinstance(leaf, float) and leaf.is_integer() for leaf in leaves(evidence))
        assert canonical_bytes(evidence) == canonical_bytes(with_floats(evidence))


NEVER = {
    Layer.PATTERNS: {"chart_shapes"},
    Layer.INDICATORS: {"market_breadth"},
    Layer.SENTIMENT: {"vix", "put_call_ratio", "commitment_of_traders", "funding", "news"},
    Layer.VOLATILITY: {"implied_volatility"},
    Layer.INTERMARKET: {"macro_calendar"},
}
"""What no source gives: the whole of it, nothing else may be missing for good."""


def test_warm_market_lacks_only_unsourced_data() -> None:
    snapshot = hours()[-1]
    account = portfolio("100000", holding("20000", "500", snapshot, "OTHER"))

    missing = not_available(question(snapshot, record=record(), portfolio=account))

    assert {layer: set(reasons) for layer, reasons in missing.items()} == NEVER
    assert all(reason for reasons in missing.values() for reason in reasons.values())


def test_unsourced_data_omitted_from_evidence() -> None:
    evidence = evidence_of(market())

    assert not any("not_available" in evidence[layer] for layer in NEVER)
    for word in ("breadth", "options", "funding", "news", "calendar"):
        assert word in CMT_ASSESSMENT_PROMPT.text


def test_timeframe_without_bar_is_reported() -> None:
    evidence = evidence_of(market(20))

    assert evidence_timeframes(market(20)) == (Timeframe.M15, Timeframe.H1, Timeframe.H4)
    assert evidence[Layer.TREND]["not_available"] == {"1d": "no closed bar yet"}


def test_unavailable_layers_are_not_required() -> None:
    asked = question(replace(market(), reference=None))

    assert set(asked.expected_output_schema["properties"]["layers"]["required"]) == (
        set(Layer) - {Layer.INTERMARKET, Layer.SYSTEM}
    )
    assert not_available(asked)[Layer.INTERMARKET]["second_market"] == "none is fed"
    assert not_available(asked)[Layer.SYSTEM] == {"record": "not enough decisions (0 of 10)"}


def test_available_layers_are_all_required() -> None:
    asked = question(record=record())

    assert asked.expected_output_schema["properties"]["layers"]["required"] == list(Layer)
    assert available_layers(asked) == frozenset(Layer)


def test_record_change_alters_request_hash() -> None:
    assert question(record=record(11)).request_hash != question(record=record(12)).request_hash


def test_evidence_rounds_snapshot_numbers() -> None:
    snapshot = market()
    inputs, evidence = snapshot.layer_inputs(), evidence_of(snapshot)

    hour = inputs["indicators"]["timeframes"]["1h"]
    assert evidence[Layer.INDICATORS]["rsi_14"][1] == pytest.approx(hour["rsi_14"], rel=5e-3)
    nearest = inputs["levels"]["nearest"]["above"]
    assert evidence[Layer.LEVELS]["above"]["price"] == [level["price"] for level in nearest]


def test_swing_level_omits_timestamp() -> None:
    names = [
        name
        for snapshot in hours()[60::10]
        for side in ("above", "below")
        for name in evidence_of(snapshot)[Layer.LEVELS][side]["level"]
    ]

    assert {name for name in names if name.startswith("swing_")} <= {
        f"swing_{side}_{timeframe}" for side in ("high", "low") for timeframe in Timeframe
    }


def test_patterns_cover_decision_and_longer_timeframe() -> None:
    content = evidence_of(market())[Layer.PATTERNS]

    assert set(content) == {"1h", "4h"}
    assert all(text.split()[1] in {"up", "down"} for text in (content["1h"]["break"], content["4h"]["break"]))


def test_trend_reports_incomplete_bars_only() -> None:
    holed = next(now for now in hours() if not now.frames[now.decision].last.complete)

    assert evidence_of(holed)[Layer.TREND]["incomplete"] == [
        "15m: 2 of 3 bars",
        "1h: 8 of 12 bars",
    ]
    assert "incomplete" not in evidence_of(market(20))[Layer.TREND]
