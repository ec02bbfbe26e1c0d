"""The analyst: asks about the market after a trigger, and records the decision."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.canonical import exact_bytes, utc_text
from agentic_trading.client.gateway import Gateway
from agentic_trading.clock import Clock
from agentic_trading.desk.analysis.assessment import STEP, Assessment, Demands, Provenance, assess
from agentic_trading.desk.analysis.check import check_cmt_assessment
from agentic_trading.desk.analysis.context import (
    LAYER_SOURCES,
    Context,
    QuestionReason,
    TradeLimits,
    is_available,
    not_available,
)
from agentic_trading.desk.analysis.events import Skipped, TriggerBar, Triggered, Undecided
from agentic_trading.desk.analysis.judgement import Judgement, Layer, asked_assessment_schema
from agentic_trading.desk.analysis.plan import plan_prices
from agentic_trading.desk.analysis.portfolio_context import NO_PORTFOLIO, PortfolioContext, TrackRecord
from agentic_trading.desk.exchange import Position
from agentic_trading.desk.market.bar import LADDER, Timeframe
from agentic_trading.desk.market.layers.features import UNSOURCED
from agentic_trading.desk.market.snapshot import BASE, MarketSnapshot
from agentic_trading.desk.market.triggers import Skip, SkipReason, Trigger, TriggerRules, decide
from agentic_trading.desk.prompts import PRICE_DIGITS, Prompt, load_prompt, price, significant
from agentic_trading.ids import derived_id
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.llm.result import LLMResult

MEASURES: Final[Mapping[Layer, tuple[str, ...]]] = MappingProxyType({
    Layer.TREND: (
        "direction",
        "structure",
        "close_vs_ema_21_atr",
        "close_vs_sma_50_atr",
        "close_vs_sma_200_atr",
        "ema_21_slope_atr",
        "range_width_percentile",
        "volume_skew",
    ),
    Layer.INDICATORS: (
        "rsi_14",
        "macd_histogram",
        "macd_histogram_change",
        "adx_14",
        "plus_di_14",
        "minus_di_14",
        "percent_b",
        "band_width_pct",
        "stochastic_k",
        "stochastic_d",
        "trix_15",
        "obv_slope",
        "mfi_14",
        "close_vs_vwap_20_atr",
    ),
    Layer.SENTIMENT: (
        "taker_buy_20_pct",
        "trades_z",
        "volume_z",
        "streak",
    ),
    Layer.VOLATILITY: (
        "atr_pct",
        "atr_percentile",
        "realised_20_annual_pct",
        "realised_percentile",
        "vol_of_vol",
        "regime",
    ),
})
"""The measures given for every timeframe. Prices that only repeat a distance are left out."""

SWINGS_SHOWN: Final = 2
SWING: Final = "swing_"
PRICES: Final = frozenset({"price"})
DISTANCES: Final = frozenset({"macd_histogram", "macd_histogram_change"})
DISTANCE_DIGITS: Final = 3
RATIO_DIGITS: Final = 2
CLOSE_CALLS: Final = frozenset({"taker_buy_20_pct", "profit_factor"})
"""Ratios with a third digit, because a small difference decides."""
STOP_DIGITS: Final = 6
FLAGS: Final = ("narrow_7", "wide_range", "squeeze")
DOUBLES: Final = ("double_top", "double_bottom")
PATTERN_TIMEFRAMES: Final = 2
GAPS_SHOWN: Final = 2

Content = dict[str, Any]


def layer_evidence(
    snapshot: MarketSnapshot, record: TrackRecord, portfolio: PortfolioContext | None = None
) -> dict[Layer, Content]:
    """Return the evidence of each layer in few digits, in the order of `Layer`.

    A measure is a row over `evidence_timeframes`, shortest first, up to the last timeframe that has it. None
    is not available. Prices have the digits of the snapshot, stops 6 significant digits, distances between
    prices 3, and ratios 2. `not_available` names the missing figures with their reasons, except those that
    are never available. A layer without numbers has only this entry. All evidence together is about 3.5 kB.

    `portfolio` is the account as of the snapshot.
    """
    inputs = snapshot.layer_inputs()
    trend, levels = inputs[Layer.TREND], inputs[Layer.LEVELS]
    patterns, frames = inputs[Layer.PATTERNS], evidence_timeframes(snapshot)
    return {
        Layer.TREND: {
            **_rows(Layer.TREND, trend, frames),
            "swings": _swing_labels(trend, frames),
            "conflicts": _conflicts(trend),
            **_incomplete(snapshot),
        },
        Layer.LEVELS: {
            **_nearest(levels),
            "swings": _swings(levels, snapshot.decision),
            **_absent(Layer.LEVELS, levels),
        },
        Layer.PATTERNS: {
            **patterns_evidence(patterns, snapshot.decision),
            **_absent(Layer.PATTERNS, patterns),
        },
        Layer.INDICATORS: {
            **_rows(Layer.INDICATORS, inputs[Layer.INDICATORS], frames),
            "divergences": _divergences(inputs[Layer.INDICATORS], frames),
        },
        Layer.SENTIMENT: _rows(Layer.SENTIMENT, inputs[Layer.SENTIMENT], frames),
        Layer.RISK: _risk(inputs[Layer.RISK], snapshot, portfolio),
        Layer.VOLATILITY: _rows(Layer.VOLATILITY, inputs[Layer.VOLATILITY], frames),
        Layer.INTERMARKET: _whole(Layer.INTERMARKET, inputs[Layer.INTERMARKET]),
        Layer.SYSTEM: _whole(Layer.SYSTEM, record.evidence()),
    }


def evidence_timeframes(snapshot: MarketSnapshot) -> tuple[Timeframe, ...]:
    """Return the timeframes of the evidence, shortest first.

    They are the one below the decision timeframe, and all from it on.
    """
    frames = list(snapshot.frames)
    below = [each for each in frames if each.seconds < snapshot.decision.seconds]
    return (*below[-1:], *frames[len(below) :])


def _rows(layer: Layer, measured: Mapping[str, Any], timeframes: Sequence[Timeframe]) -> Content:
    frames = [measured["timeframes"][timeframe] for timeframe in timeframes]
    rows = {name: _row([_rounded(name, frame.get(name)) for frame in frames]) for name in MEASURES[layer]}
    return {**rows, **_absent(layer, measured)}


def _row(values: list[Any]) -> list[Any]:
    """Leave off the longest timeframes, at the end, if they have too few bars."""
    while values and values[-1] is None:
        values.pop()
    return values


def _rounded(name: str, value: Any) -> Any:
    """Round a measure. Only `price` keeps all its digits."""
    if not isinstance(value, float):
        return value
    # Digits without information are cut, because each costs a token.
    return _significant(value, PRICE_DIGITS if name in PRICES else digits_of(name))


def digits_of(measure: str) -> int:
    """Return the number of significant digits of a measure."""
    if measure in DISTANCES:
        return DISTANCE_DIGITS
    return RATIO_DIGITS + (measure in CLOSE_CALLS)


def _whole(layer: Layer, measured: Mapping[str, Any]) -> Content:
    figures = {
        name: [_rounded(name, each) for each in value] if isinstance(value, list) else _rounded(name, value)
        for name, value in measured.items()
        if name != "not_available"
    }
    return {**figures, **_absent(layer, measured)}


def _absent(layer: Layer, measured: Mapping[str, Any]) -> Content:
    """Return the figures that are missing this time, with their reasons."""
    # Rows show missing timeframes themselves. Figures that are never there are left out, because the prompt
    # names them.
    never = UNSOURCED.get(layer, {})
    absent = {
        name: reason
        for name, reason in measured.get("not_available", {}).items()
        if name not in never and not _is_of_one_frame(name)
    }
    return {"not_available": absent} if absent else {}


_OF_ONE_FRAME: Final = tuple(f"{timeframe}." for timeframe in LADDER)


def _is_of_one_frame(name: str) -> bool:
    return name.startswith(_OF_ONE_FRAME)


def _swing_labels(trend: Mapping[str, Any], timeframes: Sequence[Timeframe]) -> Content:
    frames = [trend["timeframes"][timeframe] for timeframe in timeframes]
    return {side: [" ".join(frame["swing_labels"][side]) for frame in frames] for side in ("highs", "lows")}


def _conflicts(trend: Mapping[str, Any]) -> list[str]:
    return [
        f"{pair['lower']} {pair['lower_direction']}, {pair['higher']} {pair['higher_direction']}"
        for pair in trend["conflicts"]
    ]


def _incomplete(snapshot: MarketSnapshot) -> Content:
    """Return the last bars with a hole, or an empty mapping."""
    lasts = {timeframe: frame.last for timeframe, frame in snapshot.frames.items()}
    holed = [
        f"{timeframe}: {last.parts} of {last.expected} bars"
        for timeframe, last in lasts.items()
        if not last.complete
    ]
    return {"incomplete": holed} if holed else {}


def _nearest(levels: Mapping[str, Any]) -> Content:
    return {
        side: _columns(levels["nearest"][side], ("level", "price", "distance_atr"))
        for side in ("above", "below")
    }


def _swings(levels: Mapping[str, Any], decision: Timeframe) -> Content:
    swings = levels["swings"][decision]
    return {side: _columns(swings[side][-SWINGS_SHOWN:], ("price", "touches")) for side in ("highs", "lows")}


def _columns(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> Content:
    """Turn rows of named values into one row per name."""
    return {name: [_named(name, row.get(name)) for row in rows] for name in names}


def _named(name: str, value: Any) -> Any:
    """Return a value of the evidence. The name of a swing loses its time."""
    if name == "level" and value.startswith(SWING):  # without its time, because its price identifies it
        return value.rpartition("_")[0]
    return _rounded(name, value)


def _divergences(indicators: Mapping[str, Any], timeframes: Sequence[Timeframe]) -> list[str]:
    """Return the divergences, each with its timeframe."""
    frames = indicators["timeframes"]
    return [f"{timeframe} {found}" for timeframe in timeframes for found in frames[timeframe]["divergences"]]


def _risk(risk: Mapping[str, Any], snapshot: MarketSnapshot, portfolio: PortfolioContext | None) -> Content:
    """Return the candidates in both directions, the size at each stop, the account."""
    sides: Content = {
        side: {
            "stops": {stop["kind"]: _significant(stop["price"], STOP_DIGITS) for stop in risk[side]["stops"]},
            "targets": _columns(risk[side]["targets"], ("price", "rr")),
        }
        for side in ("long", "short")
    }
    absent = _absent(Layer.RISK, risk).get("not_available", {})
    if portfolio is None:
        return {**sides, "not_available": {**absent, "book": NO_PORTFOLIO}}
    for side, content in sides.items():
        content["size_pct"] = [
            _rounded("size_pct", size) for size in portfolio.sizes_pct(risk[side]["stops"])
        ]
    account = portfolio.evidence(snapshot.symbol, snapshot.closes)
    absent = {**absent, **account.pop("not_available", {})}
    figures = _whole(Layer.RISK, account)
    return {**sides, "book": figures, **({"not_available": absent} if absent else {})}


def _significant(value: float, digits: int) -> float | int | None:
    short = significant(value, digits)
    # Whole numbers become ints, so that canonical JSON is one pass of its encoder.
    return int(short) if short is not None and short.is_integer() else short


def patterns_evidence(patterns: Mapping[str, Any], decision: Timeframe) -> dict[str, Any]:
    """Return the patterns of layer 3 by timeframe.

    Absent patterns, and timeframes without a bar, are left out.
    """
    frames = patterns["timeframes"]
    longer = [each for each in LADDER if each.seconds >= decision.seconds and each in frames]
    return {timeframe.value: _frame_patterns(frames[timeframe]) for timeframe in longer[:PATTERN_TIMEFRAMES]}


def _frame_patterns(frame: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "last_bar": [*frame["candles"], *(flag for flag in FLAGS if frame.get(flag))],
        "order_blocks": _zones(frame["order_blocks"]),
        "gaps": _zones(frame["gaps"][-GAPS_SHOWN:]),
    }
    if "break" in frame:
        broken = frame["break"]
        found["break"] = f"{broken['kind']} {broken['way']} of {_number(broken['price'])}, {_ago(broken)}"
    if "sweep" in frame:
        swept = frame["sweep"]
        found["sweep"] = f"{swept['way']} at {_number(swept['price'])}, {_ago(swept)}"
    for name in DOUBLES:
        if name in frame:
            found[name] = _double(frame[name])
    return {name: value for name, value in found.items() if value}


def _double(double: Mapping[str, Any]) -> str:
    state = "confirmed" if double["confirmed"] else "candidate"
    return f"{state} at {_number(double['price'])}, neckline {_number(double['neckline'])}"


def _zones(zones: Iterable[Mapping[str, Any]]) -> list[str]:
    return [
        f"{zone['way']} {_number(zone['low'])} to {_number(zone['high'])}, {_ago(zone)}" for zone in zones
    ]


def _ago(event: Mapping[str, Any]) -> str:
    return f"{event['bars_ago']} bars ago"


def _number(number: float) -> str:
    return str(int(number)) if number.is_integer() else str(number)


# Read at import, because an agent that is created on a running loop must not read files.
CMT_ASSESSMENT_PROMPT: Final[Prompt] = load_prompt("agentic_trading.desk.analysis", "cmt_assessment.v2")


@dataclass(frozen=True, slots=True)
class AnalystSettings:
    """Settings of the analyst.

    Attributes:
        triggers: The reasons to ask.
        answer_within: How long to wait for an answer.
        limits: The limits of a proposed trade.
        demands: The minimum figures of a trade.

    """

    triggers: TriggerRules = field(default_factory=TriggerRules)
    answer_within: timedelta = timedelta(minutes=5)
    limits: TradeLimits = field(default_factory=TradeLimits)
    demands: Demands = field(default_factory=Demands)


class CmtAnalyst:
    """An analyst of one symbol, at the closes of its decision timeframe.

    Each close is a separate trace: `Skipped`, or `Triggered` followed by `Assessment` or `Undecided`. Ids are
    derived from session, symbol and time, so that the same session over the same bars gives the same ids.
    Calls of one analyst must not overlap.

    A `retry_policy` replaces the envelope's default. If it allows one attempt more time than the settings,
    that time counts.
    """

    def __init__(
        self,
        gateway: Gateway,
        clock: Clock,
        *,
        session_id: str,
        provider: LLMProvider,
        model: str = "",
        agent_id: str = "cmt-analyst",
        tenant_id: str = "default",
        settings: AnalystSettings | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        self._gateway = gateway
        self._clock = clock
        self._session_id = session_id
        self._provider = provider
        self._model = model
        self._agent_id = agent_id
        self._tenant_id = tenant_id
        self._settings = settings or AnalystSettings()
        self._retry_policy = retry_policy
        self._before: MarketSnapshot | None = None
        self._assessed_at: datetime | None = None
        self._track: TrackRecord | None = None

    @property
    def track(self) -> TrackRecord | None:
        """The record of its forecasts so far, or None before the first close."""
        return self._track

    def remember(
        self, snapshot: MarketSnapshot, *, assessed_at: datetime | None, track: TrackRecord | None = None
    ) -> None:
        """Continue after `snapshot`, which an earlier run has seen.

        Args:
            snapshot: The last snapshot of the earlier run.
            assessed_at: The time of its last assessment.
            track: The record of its forecasts. Without it a new record begins.

        """
        self._before = snapshot
        self._assessed_at = assessed_at
        self._track = track

    async def consider(
        self,
        snapshot: MarketSnapshot,
        *,
        position: Position | None = None,
        portfolio: PortfolioContext | None = None,
        cause: str = "",
    ) -> Assessment | NoDecision | Skip:
        """Ask about the market if there is a reason, and return the decision.

        You may call it at any close. Between closes of the decision timeframe it returns a `Skip` without a
        record.

        Args:
            snapshot: The market at the close.
            position: The open position of the symbol.
            portfolio: The account at the same close.
            cause: The id of the event that brought the bar.

        Returns:
            The assessment, a `NoDecision` if the call gave no usable answer, or a `Skip` if there was no
            reason to ask.

        Raises:
            LookAheadError: If the snapshot has a bar from after its `as_of`.
            BusError: If a message cannot be published.

        """
        if not self._is_new(snapshot):
            return Skip(SkipReason.NO_NEW_BAR, f"no {snapshot.decision} bar has closed")
        before, self._before = self._before, snapshot
        track = self._update_track(snapshot)
        outcome = decide(before, snapshot, self._settings.triggers, assessed_at=self._assessed_at)
        if isinstance(outcome, Skip):
            reason, detail = outcome.reason, outcome.detail
            skipped = Skipped(symbol=snapshot.symbol, step=STEP, reason=reason, detail=detail)
            await self._record(skipped, snapshot, "skip", cause)
            return outcome
        envelope = self._envelope(snapshot, outcome, track, position, portfolio)
        await self._record(_triggered(outcome, snapshot), snapshot, "trigger", cause)
        return await self._ask(snapshot, envelope, track)

    def _update_track(self, snapshot: MarketSnapshot) -> TrackRecord:
        """Return the record of forecasts, updated with the newest close."""
        if self._track is None:
            self._track = TrackRecord(snapshot.decision)
        self._track.see(snapshot.available_at, snapshot.last)
        return self._track

    def _is_new(self, snapshot: MarketSnapshot) -> bool:
        frame = snapshot.frames.get(snapshot.decision)
        earlier = self._before.frames.get(snapshot.decision) if self._before else None
        return frame is not None and (earlier is None or earlier.close_time < frame.close_time)

    async def _ask(
        self, snapshot: MarketSnapshot, envelope: LLMEnvelope, track: TrackRecord
    ) -> Assessment | NoDecision:
        answer = await self._gateway.ask(envelope)
        if isinstance(answer, NoDecision):
            return await self._no_decision(snapshot, envelope, answer.reason, cause=envelope.envelope_id)
        judgement = read_result(envelope, answer.result)
        if isinstance(judgement, FailureReason):
            return await self._no_decision(snapshot, envelope, judgement, cause=answer.interaction_id)
        self._assessed_at = snapshot.as_of
        provenance = self._provenance(snapshot, envelope, answer)
        track.add_forecast(snapshot.available_at, judgement.direction, snapshot.last)
        assessment = assess(
            judgement,
            provenance,
            self._settings.demands,
            prices=plan_prices(envelope, judgement),
            not_available=not_available(envelope),
        )
        await self._record(assessment, snapshot, "assessment", answer.interaction_id)
        return assessment

    def _envelope(
        self,
        snapshot: MarketSnapshot,
        trigger: Trigger,
        track: TrackRecord,
        position: Position | None,
        portfolio: PortfolioContext | None,
    ) -> LLMEnvelope:
        envelope_id = self._id(snapshot, "envelope")
        builder = EnvelopeBuilder(clock=self._clock, ids=lambda: envelope_id)
        limits = self._settings.limits
        put_question(
            builder, snapshot, trigger, position=position, limits=limits, record=track, portfolio=portfolio
        )
        builder.with_trace(self._trace_id(snapshot), causation_id=self._id(snapshot, "trigger"))
        builder.with_agent(self._agent_id, "cmt_analyst").with_tenant(self._tenant_id)
        builder.with_provider(self._provider, self._model)
        patience = self._settings.answer_within
        if self._retry_policy is not None:
            builder.with_retry_policy(self._retry_policy)
            patience = max(patience, timedelta(seconds=self._retry_policy.attempt_timeout_s))
        builder.with_deadline(self._clock.now() + patience)
        return builder.build()

    def _provenance(
        self,
        snapshot: MarketSnapshot,
        envelope: LLMEnvelope,
        answer: LLMInteraction,
    ) -> Provenance:
        return Provenance(
            assessment_id=self._id(snapshot, "assessment"),
            trace_id=envelope.trace_id,
            envelope_id=envelope.envelope_id,
            interaction_id=answer.interaction_id,
            request_hash=envelope.request_hash,
            symbol=snapshot.symbol,
            as_of=snapshot.as_of,
            last_close=last_close(snapshot),
        )

    async def _no_decision(
        self,
        snapshot: MarketSnapshot,
        envelope: LLMEnvelope,
        reason: FailureReason,
        *,
        cause: str,
    ) -> NoDecision:
        undecided = Undecided(
            reason=reason,
            envelope_id=envelope.envelope_id,
            trace_id=envelope.trace_id,
            as_of=snapshot.as_of,
            symbol=snapshot.symbol,
            step=STEP,
            request_hash=envelope.request_hash,
        )
        await self._record(undecided, snapshot, "no_decision", cause)
        return undecided

    async def _record(self, body: EventBody, snapshot: MarketSnapshot, part: str, cause: str) -> None:
        """Record a body under an id derived from the trace and `part`."""
        event = body.as_event(
            event_id=self._id(snapshot, part),
            trace_id=self._trace_id(snapshot),
            tenant_id=self._tenant_id,
            time=self._clock.now(),
            causation_id=cause,
            as_of=snapshot.as_of,
        )
        await self._gateway.record(event)

    def _trace_id(self, snapshot: MarketSnapshot) -> str:
        return derived_id(self._session_id, snapshot.symbol, utc_text(snapshot.as_of), STEP)

    def _id(self, snapshot: MarketSnapshot, part: str) -> str:
        return derived_id(self._trace_id(snapshot), part)


CMTAnalysisEngine = CmtAnalyst
"""Another name of `CmtAnalyst`, from the first design."""


def put_question(
    builder: EnvelopeBuilder,
    snapshot: MarketSnapshot,
    trigger: Trigger,
    *,
    position: Position | None,
    limits: TradeLimits,
    record: TrackRecord | None = None,
    portfolio: PortfolioContext | None = None,
) -> EnvelopeBuilder:
    """Add everything that the answer depends on to an envelope.

    Equal markets and records give equal requests. All nine layers have evidence, in the order of `Layer`. A
    layer without numbers has the reason, and is not asked for. The decision timeframe must have an ATR, which
    a trigger guarantees. The evidence is as old as the newest bar of the snapshot. `build()` refuses it if
    that bar closes after `snapshot.as_of`.

    Args:
        builder: The builder of the envelope.
        snapshot: The market.
        trigger: The reason for the question.
        position: The open position of the symbol.
        limits: The limits of a proposed trade.
        record: The record of forecasts, or None without forecasts.
        portfolio: The account as of the newest bar.

    """
    context = market_context(snapshot, trigger, position=position, limits=limits)
    builder.for_analysis()
    builder.with_instructions(CMT_ASSESSMENT_PROMPT.text, prompt_version=CMT_ASSESSMENT_PROMPT.version)
    builder.with_subject(snapshot.symbol, step=STEP)
    builder.with_as_of(snapshot.as_of)
    builder.with_context(context.model_dump(mode="json", exclude_none=True), as_of=snapshot.available_at)
    evidence = layer_evidence(snapshot, record or TrackRecord(snapshot.decision), portfolio)
    builder.with_output_schema(
        asked_assessment_schema(
            frozenset(layer for layer, content in evidence.items() if is_available(content))
        )
    )
    for source, layer in LAYER_SOURCES.items():
        builder.add_evidence(source, evidence[layer], available_at=snapshot.available_at)
    return builder


def market_context(
    snapshot: MarketSnapshot,
    trigger: Trigger,
    *,
    position: Position | None,
    limits: TradeLimits,
) -> Context:
    """Return the context of a question, with the last close exactly as it traded."""
    return Context(
        symbol=snapshot.symbol,
        decision_timeframe=snapshot.decision,
        timeframes=evidence_timeframes(snapshot),
        last_close=last_close(snapshot),
        atr=Decimal(str(price(snapshot.frames[snapshot.decision].volatility.atr_14))),
        prompted_by=QuestionReason(kind=trigger.kind, detail=trigger.detail),
        position=position,
        limits=limits,
    )


def last_close(snapshot: MarketSnapshot) -> Decimal:
    """Return the exact close of the newest bar."""
    return snapshot.frames[BASE].last.bar.close


def _triggered(trigger: Trigger, snapshot: MarketSnapshot) -> Triggered:
    """Return the event of a trigger, with its bar."""
    closed = snapshot.frames[snapshot.decision].last
    bar = closed.bar
    return Triggered(
        symbol=snapshot.symbol,
        step=STEP,
        kind=trigger.kind,
        detail=trigger.detail,
        bar=TriggerBar(**dict(bar), close_time=bar.close_time, parts=closed.parts, expected=closed.expected),
        last_close=last_close(snapshot),
    )


def read_result(envelope: LLMEnvelope, result: LLMResult) -> Judgement | FailureReason:
    """Return the judgement of the last result for `envelope`, or a failure.

    Only an actionable result is read. The failure has the reason why there is no judgement.
    """
    if result.failure is not None:
        return result.failure
    if not result.actionable:
        return _not_actionable(result)
    text = exact_bytes(result.parsed_output).decode()
    # Checked again, because a worker without the check would have accepted the answer.
    violations = check_cmt_assessment(envelope, text)
    if violations:
        return FailureReason(
            category=FailureKind.PARSING_ERROR,
            description=f"the answer breaks {len(violations)} rules of the assessment",
            technical_details="; ".join(f"{v.path}: {v.message}" for v in violations),
        )
    return Judgement.model_validate_json(text)


def _not_actionable(result: LLMResult) -> FailureReason:
    details = [*([result.error] if result.error else []), *result.validation_errors]
    return FailureReason(
        category=FailureKind.PARSING_ERROR if result.success else FailureKind.INTERNAL_ERROR,
        description="the call gave no answer that may be acted on",
        technical_details="; ".join(details),
    )
