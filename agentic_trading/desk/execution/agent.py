"""The execution agent: asks a model how to fill an approved intent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from statistics import median
from typing import Any, Final

from agentic_trading.canonical import exact_bytes, utc_text
from agentic_trading.client.gateway import Gateway
from agentic_trading.clock import Clock
from agentic_trading.desk.execution.candidates import FillCandidates, FillFacts, fill_candidates
from agentic_trading.desk.execution.check import check_fill_strategy, terms_of
from agentic_trading.desk.execution.order import FillLimits, OrderIntent
from agentic_trading.desk.execution.order_router import TradeJournal
from agentic_trading.desk.execution.strategy import FillStrategy, asked_fill_schema, read_choice
from agentic_trading.desk.instrument import BPS, EXACT, ZERO, Instrument
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.errors import NoBarsError
from agentic_trading.desk.prompts import Prompt, load_prompt
from agentic_trading.ids import derived_id
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import RetryPolicy

# Read at import, because an agent that is created on a running loop must not read files.
FILL_STRATEGY_PROMPT: Final[Prompt] = load_prompt("agentic_trading.desk.execution", "fill_strategy.v2")

STEP = "fill_strategy"
SHOWN_BARS = 6

CENT = Decimal("0.01")
MILLIONTH = Decimal("0.000001")


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
    """Settings of the execution agent: session, model, agent and tenant.

    Attributes:
        session_id: The ids of envelopes are derived from it.
        answer_within: How long to wait for an answer. If `retry_policy` allows one attempt more time, that
            time counts.
        retry_policy: The retry policy, or None for the envelope's default.
        asks: Whether a model chooses the way to fill an intent. Otherwise the first candidate is taken: the
            next open, or the limit of the intent.

    """

    session_id: str
    provider: LLMProvider
    model: str = ""
    agent_id: str = "execution-1"
    tenant_id: str = "default"
    answer_within: timedelta = timedelta(seconds=60)
    retry_policy: RetryPolicy | None = None
    asks: bool = True

    @property
    def patience(self) -> timedelta:
        """How long to wait for an answer, at least as long as one attempt may take."""
        policy = self.retry_policy
        return max(self.answer_within, timedelta(seconds=policy.attempt_timeout_s if policy else 0))


@dataclass(frozen=True, slots=True)
class TimedFillStrategy:
    """A fill strategy, and the market time at which it was known.

    This is the time of the intent, or that of a later answer.
    """

    strategy: FillStrategy
    known_at: datetime


class ExecutionAgent:
    """An agent that asks for a fill strategy, checks it, and records the outcome."""

    def __init__(
        self, gateway: Gateway, clock: Clock, limits: FillLimits, settings: ExecutionSettings
    ) -> None:
        self._gateway = gateway
        self._clock = clock
        self._limits = limits
        self._settings = settings
        self._journal = TradeJournal(gateway, clock, tenant_id=settings.tenant_id)

    async def decide(
        self, intent: OrderIntent, instrument: Instrument, bars: Sequence[Bar], spread_bps: Decimal
    ) -> TimedFillStrategy | NoDecision:
        """Return the model's fill strategy, or a `NoDecision`. It is never a default.

        If the limits leave one way to fill the intent, or the settings do not ask, the first way is the
        strategy, without a call. The intent is
        recorded before the model is asked, and the strategy or the missing decision afterwards.

        Args:
            intent: The approved intent.
            instrument: The instrument with its grid.
            bars: The last closed bars, oldest first.
            spread_bps: The whole spread in basis points.

        Raises:
            LookAheadError: If a bar closes after `intent.as_of`.
            NoBarsError: If there are no bars.

        """
        question = self._question(intent, instrument, bars, spread_bps)
        # A single candidate needs no question. It would cost a call for each order of a plan.
        if len(question.candidates) == 1 or not self._settings.asks:
            strategy = question.first_strategy()
            await self._journal.intent(intent)
            await self._journal.strategy(intent, strategy, request_hash="", cause=intent.intent_id)
            return TimedFillStrategy(strategy, intent.as_of)
        envelope = self._envelope(intent, question, bars, spread_bps)
        await self._journal.intent(intent)
        answer = await self._gateway.ask(envelope)
        asked = envelope.request_hash
        if isinstance(answer, NoDecision):
            await self._journal.no_decision(intent, answer, request_hash=asked, cause=intent.intent_id)
            return answer
        outcome = strategy_of(envelope, answer)
        cause = answer.interaction_id
        if isinstance(outcome, NoDecision):
            await self._journal.no_decision(intent, outcome, request_hash=asked, cause=cause)
            return outcome
        await self._journal.strategy(intent, outcome, request_hash=asked, cause=cause)
        return TimedFillStrategy(outcome, max(intent.as_of, answer.result.finished_at or intent.as_of))

    def envelope(
        self, intent: OrderIntent, instrument: Instrument, bars: Sequence[Bar], spread_bps: Decimal
    ) -> LLMEnvelope:
        """Return the envelope of a question.

        Equal arguments give equal envelopes, except creation times.
        """
        return self._envelope(intent, self._question(intent, instrument, bars, spread_bps), bars, spread_bps)

    def _question(
        self, intent: OrderIntent, instrument: Instrument, bars: Sequence[Bar], spread_bps: Decimal
    ) -> "_Question":
        evidence = execution_evidence(intent.symbol, bars, intent.quantity, spread_bps)
        limits = self._limits.narrowed_to(intent, instrument)
        order = _order(intent)
        facts = FillFacts.of(limits, order, {item.source: item.content for item in evidence})
        return _Question(evidence, limits, order, fill_candidates(facts))

    def _envelope(
        self, intent: OrderIntent, question: "_Question", bars: Sequence[Bar], spread_bps: Decimal
    ) -> LLMEnvelope:
        evidence, candidates = question.evidence, question.candidates
        envelope_id = derived_id(self._settings.session_id, "execution", intent.intent_id)
        builder = (
            EnvelopeBuilder(clock=self._clock, ids=lambda: envelope_id)
            .for_execution()
            .with_instructions(FILL_STRATEGY_PROMPT.text, prompt_version=FILL_STRATEGY_PROMPT.version)
            .with_context(
                _context(question.order, question.limits, candidates, bars[-1], spread_bps),
                as_of=bars[-1].close_time,
            )
            .with_output_schema(asked_fill_schema(tuple(candidates), len(evidence)))
            .with_provider(self._settings.provider, self._settings.model)
            .with_agent(self._settings.agent_id, "execution")
            .with_tenant(self._settings.tenant_id)
            .with_subject(intent.symbol, step=STEP)
            .with_trace(intent.trace_id, intent.intent_id)
            .with_as_of(intent.as_of)
            .with_deadline(self._clock.now() + self._settings.patience)
        )
        if self._settings.retry_policy is not None:
            builder.with_retry_policy(self._settings.retry_policy)
        for item in evidence:
            builder.add_evidence(item.source, item.content, available_at=bars[-1].close_time)
        return builder.build()


def strategy_of(envelope: LLMEnvelope, interaction: LLMInteraction) -> FillStrategy | NoDecision:
    """Return the strategy in an attempt, or a `NoDecision`.

    The limits are checked once more.
    """
    result = interaction.result
    if not result.actionable:
        description = result.error or "the answer must not become an order"
        missing = FailureReason(category=FailureKind.INTERNAL_ERROR, description=description)
        return _none(envelope, result.failure or missing)
    text = exact_bytes(result.parsed_output).decode()
    # Checked again, because a worker may run without the check.
    violations = check_fill_strategy(envelope, text)
    if violations:
        reason = FailureReason(
            category=FailureKind.PARSING_ERROR,
            description="the fill strategy is outside its limits",
            technical_details="; ".join(violation.message for violation in violations),
        )
        return _none(envelope, reason)
    choice = read_choice(text)
    return choice.strategy(terms_of(envelope, choice))


def _none(envelope: LLMEnvelope, reason: FailureReason) -> NoDecision:
    return NoDecision(
        reason=reason, envelope_id=envelope.envelope_id, trace_id=envelope.trace_id, as_of=envelope.as_of
    )


def _order(intent: OrderIntent) -> Mapping[str, Any]:
    return intent.model_dump(
        mode="json",
        include={
            "symbol",
            "side",
            "quantity",
            "kind",
            "arrival_price",
            "limit_price",
            "stop_loss",
            "take_profit",
        },
    )


def _context(
    order: Mapping[str, Any], limits: FillLimits, candidates: FillCandidates, last: Bar, spread_bps: Decimal
) -> Mapping[str, Any]:
    return {
        "limits": limits.model_dump(mode="json"),
        "order": order,
        "market": {"last_close": last.close, "spread_bps": spread_bps, "bar_seconds": last.timeframe.seconds},
        **_offer(candidates),
    }


def _offer(candidates: FillCandidates) -> Mapping[str, Any]:
    """Return the first candidate in full as `terms`, and each candidate's differences."""
    # Only differences are given, because all candidates in full would take twice the tokens.
    full = {name: terms.model_dump(mode="json") for name, terms in candidates.items()}
    terms = next(iter(full.values()))
    own = {
        name: {field: value for field, value in each.items() if value != terms[field]}
        for name, each in full.items()
    }
    return {"terms": terms, "candidates": own}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One item of evidence: its source, and plain data."""

    source: str
    content: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Question:
    """The parts of a question: evidence, limits, order, and the ways to fill it."""

    evidence: Sequence[Evidence]
    limits: FillLimits
    order: Mapping[str, Any]
    candidates: FillCandidates

    def first_strategy(self) -> FillStrategy:
        """Return the first candidate as a strategy."""
        terms, *others = self.candidates.values()
        evidence_ids = [f"E{number}" for number, _ in enumerate(self.evidence, 1)]
        chosen = {
            "confidence": 1,
            "rationale": "the plain way within the limits" if others else "the only way within the limits",
            "evidence_ids": evidence_ids,
        }
        return FillStrategy.model_validate({**terms.model_dump(), **chosen})


def execution_evidence(
    symbol: str, bars: Sequence[Bar], quantity: Decimal, spread_bps: Decimal
) -> list[Evidence]:
    """Return the last closed bars, their volume and volatility as evidence E1 to E3.

    `bars` must be oldest first. Means, medians and shares of volume are over the bars with trades, and
    `without_trades` counts the others. Basis points are rounded to hundredths and shares of volume to
    millionths, half to even.

    Raises:
        NoBarsError: If there are no bars.

    """
    if not bars:
        raise NoBarsError(symbol)
    return [
        Evidence("bars", _bars(bars)),
        Evidence("volume", {**_counts(bars), **_volume(bars, quantity)}),
        Evidence("volatility", {**_counts(bars), **_volatility(bars, spread_bps)}),
    ]


def _bars(bars: Sequence[Bar]) -> dict[str, Any]:
    rows = [
        [utc_text(bar.open_time), bar.open, bar.high, bar.low, bar.close, bar.volume]
        for bar in bars[-SHOWN_BARS:]
    ]
    return {
        "timeframe": bars[-1].timeframe,
        "columns": ["open_time", "open", "high", "low", "close", "volume"],
        "rows": rows,
    }


def _volume(bars: Sequence[Bar], quantity: Decimal) -> dict[str, Any]:
    volumes = [bar.volume for bar in _traded(bars)] or [ZERO]
    mean = EXACT.divide(sum(volumes, ZERO), len(volumes))
    return {
        "mean": _rounded(mean, MILLIONTH),
        "median": _rounded(median(volumes), MILLIONTH),
        "last": bars[-1].volume,
        "order_to_mean": _rounded(EXACT.divide(quantity, mean), MILLIONTH) if mean else None,
    }


def _volatility(bars: Sequence[Bar], spread_bps: Decimal) -> dict[str, Any]:
    ranges = [_range_bps(bar) for bar in _traded(bars)] or [ZERO]
    move = _in_bps(EXACT.subtract(bars[-1].close, bars[0].open), bars[0].open)
    return {
        "mean_range_bps": _rounded(EXACT.divide(sum(ranges, ZERO), len(ranges)), CENT),
        "last_range_bps": _rounded(_range_bps(bars[-1]), CENT),
        "widest_range_bps": _rounded(max(ranges), CENT),
        "move_bps": _rounded(move, CENT),
        "spread_bps": spread_bps,
    }


def _counts(bars: Sequence[Bar]) -> dict[str, Any]:
    return {"bars": len(bars), "without_trades": len(bars) - len(_traded(bars))}


def _traded(bars: Sequence[Bar]) -> list[Bar]:
    return [bar for bar in bars if bar.volume]


def _range_bps(bar: Bar) -> Decimal:
    return _in_bps(EXACT.subtract(bar.high, bar.low), bar.close)


def _in_bps(part: Decimal, whole: Decimal) -> Decimal:
    return EXACT.divide(EXACT.multiply(part, BPS), whole)


def _rounded(value: Decimal, step: Decimal) -> Decimal:
    return value.quantize(step, ROUND_HALF_EVEN, EXACT)
