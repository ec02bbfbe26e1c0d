"""The analyst: asks about the market when something has happened, and puts the decision on record."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

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
from agentic_trading.desk.analysis.evidence import evidence_timeframes, layer_evidence
from agentic_trading.desk.analysis.judgement import Judgement, asked_assessment_schema
from agentic_trading.desk.analysis.plan import plan_prices
from agentic_trading.desk.analysis.portfolio_context import PortfolioContext, TrackRecord
from agentic_trading.desk.exchange import Position
from agentic_trading.desk.market.snapshot import BASE, MarketSnapshot
from agentic_trading.desk.market.triggers import Skip, SkipReason, Trigger, TriggerRules, decide
from agentic_trading.desk.prompts import Prompt, load_prompt, price
from agentic_trading.ids import derived_id
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.event import EventBody
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.llm.result import LLMResult

# Read at import, like the code that it belongs to: an agent made on a running loop must not read files.
CMT_ASSESSMENT_PROMPT: Final[Prompt] = load_prompt("agentic_trading.desk.analysis", "cmt_assessment.v2")


@dataclass(frozen=True, slots=True)
class AnalystSettings:
    """When the analyst asks, how long an answer is of use, and what it must reach to become a trade."""

    triggers: TriggerRules = field(default_factory=TriggerRules)
    answer_within: timedelta = timedelta(minutes=5)
    limits: TradeLimits = field(default_factory=TradeLimits)
    demands: Demands = field(default_factory=Demands)


class CmtAnalyst:
    """Watch one symbol at the closes of its decision timeframe.

    Each close is a trace of its own: `Skipped`, or `Triggered` followed by an `Assessment` or `Undecided`. Their ids follow from the session, the symbol and the moment, so that the same session
    over the same bars gives the same ids. Ask one analyst one thing at a time.

    A `retry_policy` takes the place of the envelope's default; an answer is then waited for as long as one attempt may
    take, if that is more than the settings give it.
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
        """The record of its forecasts so far; None before the first close that it was shown."""
        return self._track

    def remember(
        self, snapshot: MarketSnapshot, *, assessed_at: datetime | None, track: TrackRecord | None = None
    ) -> None:
        """Go on after `snapshot`, which an earlier run has seen; `assessed_at` is its last assessment.

        `track` is the record of its forecasts; without one a new record begins.
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
        """Ask about the market if there is reason to; return what was decided, or why nothing was asked.

        Call it at any close: between the closes of the decision timeframe it returns a `Skip` and leaves no
        record. `portfolio` is the account at the same close, `cause` the id of the event that brought the bar.
        Whatever keeps the call from giving a usable answer comes back as `NoDecision`. Raises `LookAheadError` for a
        snapshot that holds a bar from after its `as_of`, and `BusError` if nothing can be published.
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
        """Return the record of forecasts, with the outcomes that the newest close gives."""
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
        """Record a body under the id that follows from the trace and `part`: the same fact twice is one event."""
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
"""The name of the analyst in the first design."""


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
    """Give an envelope everything that the answer depends on; equal markets and records give equal requests.

    All nine layers have their evidence, in the order of `Layer`; one without numbers says why, and is not asked for.
    Without a `record` the agent has none yet; `portfolio` is the account as of the newest bar.

    Everything in it is as old as the newest bar of the snapshot, and is refused at `build()` if that bar
    closes after `snapshot.as_of`. The decision timeframe must have an ATR; a trigger sees to it.
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
    """Return what holds for the whole question, the last close digit for digit as it traded."""
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
    """Return the close of the newest bar, exact."""
    return snapshot.frames[BASE].last.bar.close


def _triggered(trigger: Trigger, snapshot: MarketSnapshot) -> Triggered:
    """Return what happened, and on which bar."""
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
    """Return the judgement in the last result for `envelope`, or the reason why there is none to act on.

    Only an actionable result is read, and its rules are checked here once more: a worker that was not
    given the check would have let the answer through.
    """
    if result.failure is not None:
        return result.failure
    if not result.actionable:
        return _not_actionable(result)
    text = exact_bytes(result.parsed_output).decode()
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
