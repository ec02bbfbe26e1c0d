"""The outcome of a call: its object or the reason for failure, and its attempts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Final

from agentic_trading.canonical import exact_bytes
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.result import AttemptTrace, LLMResult, NextStep, Stage, Usage
from agentic_trading.structured.decode import decode
from agentic_trading.structured.extract import strip_thinking
from agentic_trading.structured.outcome import UnreadableError
from agentic_trading.structured.pydantic_schema import SemanticCheck, violations_of


@dataclass(frozen=True, slots=True)
class TotalUsage:
    """The tokens and the cost of several attempts, including failed ones.

    `cost_nusd` is in nano-dollars.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    thinking_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0
    cost_nusd: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a call.

    Attributes:
        number: The number of the attempt at its envelope, from 1.
        sent: Whether it was sent. A refused attempt was not.
        trace: How the answer was read. None if the attempt was refused or not answered.
        usage: The tokens of the attempt.
        cost_nusd: The cost in nano-dollars.
        failure: The reason for the failure. None for an accepted answer.
        next_step: The step after this attempt. `final` if it was the last one.
        in_doubt: Whether it may have been billed without a known answer. It is charged in full.
        interaction_id: The id of the attempt in the log.
        envelope_id: The id of its envelope.
        provider: The provider.
        model: The model that answered, or the requested model.
        first_cost_nusd: The cost of the first call, if the answer was served from a record. See `LLMResult`.
        text: The answer as the model wrote it, accepted or not. For people and logs only.

    """

    number: int
    sent: bool
    trace: AttemptTrace | None
    usage: Usage
    cost_nusd: int
    failure: FailureReason | None
    next_step: NextStep
    in_doubt: bool
    interaction_id: str
    envelope_id: str
    provider: LLMProvider
    model: str
    first_cost_nusd: int | None = None
    text: str = ""

    @property
    def original_cost_nusd(self) -> int:
        """The cost of the first call with this answer. A replay does not pay it again."""
        return self.cost_nusd if self.first_cost_nusd is None else self.first_cost_nusd


@dataclass(frozen=True, slots=True)
class StructuredOutcome:
    """The outcome of a call with its fallbacks. It is true only if you may act on it.

    Attributes:
        ok: Whether there is an object to act on. False for a degraded, guessed or doubtful answer.
        json: The object. Its numbers are int and Decimal with the digits that the model wrote. Empty for
            plain text. None if the call failed.
        json_text: The object as JSON: the text of the model if it was read unchanged, otherwise the output of
            `exact_bytes`. The text itself for a call for plain text. Empty if the call failed.
        usage: The sum over all attempts.
        attempts: All attempts, in order.
        error: The reason for the failure, or None.
        stage: The stage at which reading failed. None if the call failed for another reason.
        tool_called: The allowed tool that the model called. `ok` is then False, and `json` and `json_text`
            are the input of the tool.

    """

    ok: bool
    json: dict[str, Any] | None
    json_text: str
    usage: TotalUsage
    attempts: tuple[Attempt, ...]
    error: FailureReason | None = None
    stage: Stage | None = None
    tool_called: str = ""

    def __bool__(self) -> bool:
        """Return `ok`."""
        return self.ok

    @property
    def last_candidate(self) -> str:
        """The text of the last answer, accepted or not. Empty if there was no answer."""
        return next((attempt.text for attempt in reversed(self.attempts) if attempt.text), "")

    @property
    def is_complete(self) -> bool:
        """Whether `attempts` has all earlier attempts at each envelope."""
        made = Counter[str]()
        for attempt in self.attempts:
            made[attempt.envelope_id] += 1
            if attempt.number != made[attempt.envelope_id]:
                return False
        return True


def outcome_of(attempts: Sequence[LLMInteraction]) -> StructuredOutcome:
    """Return the outcome of one envelope from its attempts, in any order.

    The attempt with the highest number decides. If a number occurs twice, the later attempt counts.

    Raises:
        ValueError: If there are no attempts, or if they belong to different envelopes.

    """
    if not attempts:
        raise ValueError("There are no attempts. Pass all attempts at one envelope")
    envelopes = {(one.envelope.envelope_id, one.envelope.envelope_hash) for one in attempts}
    if len(envelopes) > 1:
        raise ValueError(
            f"The attempts belong to {len(envelopes)} envelopes. Pass the attempts at one envelope"
        )
    ordered = _in_order(attempts)
    last = ordered[-1].result
    if (unusable := last.unusable_reason) is not None:
        error = unusable.model_copy(update={"occurred_at": last.timestamp})
        without = _without_object(ordered, error, _failing_stage(last))
        if not (last.tool_called and last.validation_passed):
            return without
        called, text = last.parsed_output, _accepted_text(last)
        return replace(without, json=called, json_text=text, tool_called=last.tool_called)
    return StructuredOutcome(
        ok=True,
        json=last.parsed_output,
        json_text=_accepted_text(last),
        usage=_total(ordered),
        attempts=tuple(map(_attempt, ordered)),
        error=None,
        stage=None,
    )


def outcome_without_answer(decision: NoDecision, received: Sequence[LLMInteraction]) -> StructuredOutcome:
    """Return the outcome of an abandoned call from the attempts received so far."""
    return _without_object(_in_order(received), decision.reason, None)


def checked_outcome(outcome: StructuredOutcome, check: SemanticCheck) -> StructuredOutcome:
    """Return the outcome, or a failed one if `check` rejects its object.

    The attempts and their cost stay in both cases.
    """
    if not outcome.ok or not (broken := violations_of(check, outcome.json_text)):
        return outcome
    rules = "; ".join(f"{violation.path}: {violation.message}" for violation in broken)
    error = FailureReason(
        category=FailureKind.PARSING_ERROR,
        description=f"the check of the client rejects the answer: {rules}",
        recoverable=True,
    )
    return replace(outcome, ok=False, json=None, json_text="", error=error, stage=Stage.SEMANTIC)


def outcome_of_chain(outcomes: Sequence[StructuredOutcome]) -> StructuredOutcome:
    """Return the outcome of a call and its fallbacks.

    It is the last outcome, with the attempts and the usage of all.
    """
    parts = [part.name for part in fields(TotalUsage)]
    usage = {name: sum(getattr(outcome.usage, name) for outcome in outcomes) for name in parts}
    attempts = tuple(attempt for outcome in outcomes for attempt in outcome.attempts)
    return replace(outcomes[-1], attempts=attempts, usage=TotalUsage(**usage))


def _in_order(attempts: Sequence[LLMInteraction]) -> list[LLMInteraction]:
    by_number = {one.result.attempt_number: one for one in attempts}
    return [by_number[number] for number in sorted(by_number)]


def _without_object(
    ordered: Sequence[LLMInteraction], error: FailureReason | None, stage: Stage | None
) -> StructuredOutcome:
    usage, attempts = _total(ordered), tuple(map(_attempt, ordered))
    return StructuredOutcome(
        ok=False, json=None, json_text="", usage=usage, attempts=attempts, error=error, stage=stage
    )


_totals_of: Final = attrgetter(*(part.name for part in fields(TotalUsage)))


def _total(ordered: Sequence[LLMInteraction]) -> TotalUsage:
    return TotalUsage(*map(sum, zip(*(_totals_of(one.result) for one in ordered), strict=True)))


def _attempt(interaction: LLMInteraction) -> Attempt:
    result = interaction.result
    return Attempt(
        number=result.attempt_number,
        sent=result.dispatched_at is not None,
        trace=result.reading,
        usage=result.usage,
        cost_nusd=result.cost_nusd,
        failure=result.failure and result.failure.model_copy(update={"occurred_at": result.timestamp}),
        next_step=result.next_step,
        in_doubt=result.in_doubt,
        interaction_id=interaction.interaction_id,
        envelope_id=interaction.envelope.envelope_id,
        provider=result.provider,
        model=result.model or interaction.envelope.model,
        first_cost_nusd=result.first_cost_nusd,
        text=result.raw_output,
    )


def _failing_stage(last: LLMResult) -> Stage | None:
    if last.reading is None or last.reading.verdict in {Stage.DONE, Stage.PASSED_ON}:
        return None
    return last.reading.verdict


def _text_without_thinking(text: str) -> str:
    try:
        said, thinking = strip_thinking(text)
    except UnreadableError:  # the record of a release that accepted such a text
        return text
    return said.strip() if thinking else text


def _accepted_text(result: LLMResult) -> str:
    """Return the JSON text of an accepted object, if possible as the model wrote it."""
    if result.reading is not None and result.reading.transport == "text":
        return _text_without_thinking(result.raw_output)
    spelled = exact_bytes(result.parsed_output)
    is_changed = result.reading is not None and result.reading.fixes
    try:
        if not is_changed and exact_bytes(decode(result.raw_output).value) == spelled:
            return result.raw_output.strip()
    except UnreadableError:
        pass
    return spelled.decode()
