"""All attempts at one envelope as one value: the object, or why there is none, and what it took."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

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
    """Tokens of several attempts together, and what they cost in whole nano-dollars; failed attempts count too."""

    input_tokens: int = 0
    output_tokens: int = 0
    thinking_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0
    cost_nusd: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt: how its answer was read, what it used and cost, and its result.

    `number` counts the attempts at one envelope, `envelope_id`; one that was refused was not `sent`. `model` is the one that answered, else the requested one.
    `text` is the answer as the model wrote it, accepted or not: for people and logs.
    `trace` is None where nothing was read: the attempt was refused before it left, or was not answered. `failure` is
    None for an answer that was accepted. `next_step` says what followed, `final` that nothing did. `in_doubt` marks a
    call that may have been billed unseen, and is charged in full. By `interaction_id` it is found in the log.
    `first_cost_nusd` is set if the answer was served from a record: see `LLMResult`.
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
        """The cost of the first call with this answer, which a replay does not pay again."""
        return self.cost_nusd if self.first_cost_nusd is None else self.first_cost_nusd


@dataclass(frozen=True, slots=True)
class StructuredOutcome:
    """The outcome of one envelope, or of several that fell back one on the other. `ok`: there is an object to act on.

    If `ok`: `json` is the object, its numbers int and Decimal digit for digit as the model wrote them; `json_text` is
    the same as JSON: the model's text where it was taken as it stood, else spelled by `exact_bytes`. For a call that asked for plain
    text, `json` is empty and `json_text` the text. `error` and `stage` are None.
    If not: `json` is None, `json_text` empty, and `error` says why; `stage` says at which step reading ended, where it
    was the reading that ended the call. A degraded, guessed or doubtful answer is not `ok`.
    Where the model called a tool that the envelope allows, `tool_called` names it: the outcome is not `ok`, `json` is the
    input of the call, and `error` says that it is one.

    `attempts` are in order, and `usage` is their sum. Both are whole if `is_complete`.
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
        """The text of the last answer, accepted or not; empty if there was none."""
        return next((attempt.text for attempt in reversed(self.attempts) if attempt.text), "")

    @property
    def is_complete(self) -> bool:
        """Whether at each envelope no attempt before the last one in `attempts` is missing."""
        made = Counter[str]()
        for attempt in self.attempts:
            made[attempt.envelope_id] += 1
            if attempt.number != made[attempt.envelope_id]:
                return False
        return True


def outcome_of(attempts: Sequence[LLMInteraction]) -> StructuredOutcome:
    """Return the outcome of the envelope of these attempts, in whatever order they are given.

    The attempt with the highest number decides. Of an attempt that is given twice, the later one counts. Raises
    `ValueError` for no attempts, and for attempts at different envelopes.
    """
    if not attempts:
        raise ValueError("there is no attempt; allowed are all attempts at one envelope")
    envelopes = {(one.envelope.envelope_id, one.envelope.envelope_hash) for one in attempts}
    if len(envelopes) > 1:
        raise ValueError(f"these are attempts at {len(envelopes)} envelopes; allowed are those at one")
    ordered = _in_order(attempts)
    last = ordered[-1].result
    if (unusable := last.unusable_reason) is not None:
        error = unusable.model_copy(update={"occurred_at": last.timestamp})
        without = _without_object(ordered, error, _failing_stage(last))
        if not (last.tool_called and last.validation_passed):
            return without
        called, text = last.parsed_output, _accepted_text(last)
        return replace(without, json=called, json_text=text, tool_called=last.tool_called)
    made = _without_object(ordered, None, None)
    return replace(made, ok=True, json=last.parsed_output, json_text=_accepted_text(last))


def outcome_without_answer(decision: NoDecision, received: Sequence[LLMInteraction]) -> StructuredOutcome:
    """Return the outcome of a call that was given up for `decision.reason`, after the attempts `received`."""
    return _without_object(_in_order(received), decision.reason, None)


def checked_outcome(outcome: StructuredOutcome, check: SemanticCheck) -> StructuredOutcome:
    """Return the outcome, or one that is not ok if `check` rejects its object; the attempts and their cost stay."""
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
    """Return the outcome of envelopes that fell back one on the other: the last one's, with the attempts and usage of all."""
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


def _total(ordered: Sequence[LLMInteraction]) -> TotalUsage:
    return TotalUsage(**{
        part.name: sum(getattr(one.result, part.name) for one in ordered) for part in fields(TotalUsage)
    })


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
    if last.reading is None or last.reading.verdict is Stage.DONE:
        return None
    return last.reading.verdict


def _text_without_thinking(text: str) -> str:
    try:
        said, thinking = strip_thinking(text)
    except UnreadableError:  # the record of a release that accepted such a text
        return text
    return said.strip() if thinking else text


def _accepted_text(result: LLMResult) -> str:
    """Return the text of an accepted object: the model's own where reading it strictly gives this very object."""
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
