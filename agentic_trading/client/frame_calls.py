"""The calls of a question tree: envelopes, recorded results and new results."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.client.frames import FrameClosed, RecursionLimits
from agentic_trading.client.gateway import StructuredGateway
from agentic_trading.client.outcome import StructuredOutcome, outcome_of, outcome_of_chain
from agentic_trading.client.response import ANSWER_SCHEMA, StructuredResponse
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.event import KINDS, CallRequested
from agentic_trading.llm.fields import ON_RECORD, json_of
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import Record

ASK: Final = "ask.1"
JOIN: Final = "join.1"

INSTRUCTIONS: Final[Mapping[str, str]] = MappingProxyType({
    name: files("agentic_trading.client").joinpath("prompts", f"{name}.txt").read_text("utf-8")
    for name in (ASK, JOIN)
})
"""Instructions by name and version, from shipped files that are never edited."""

_DECLARED: Final = ANSWER_SCHEMA["properties"]
_SUB_TASK: Final = _DECLARED["sub_tasks"]["items"]
_QUERY: Final = {**_SUB_TASK["properties"]["query"], "maxLength": 500}

# Each text and list has a limit, because a small model under a grammar would otherwise fill its output cap with one of
# them. Its answer would be truncated (docs/explanation/decisions/0048).
ASK_SCHEMA: Final[Mapping[str, Any]] = {
    **ANSWER_SCHEMA,
    "$id": "asked_response.v1",
    "properties": {
        **_DECLARED,
        "reasoning": {**_DECLARED["reasoning"], "maxLength": 2000},
        "conclusion": {**_DECLARED["conclusion"], "maxLength": 2000},
        "files": {**_DECLARED["files"], "maxItems": 20},
        "sub_tasks": {
            **_DECLARED["sub_tasks"],
            "maxItems": 20,
            "items": {**_SUB_TASK, "properties": {**_SUB_TASK["properties"], "query": _QUERY}},
        },
        "error": {**_DECLARED["error"], "maxLength": 500},
    },
}
"""The schema of an answer in a tree: `ANSWER_SCHEMA` with maximum lengths."""

JOIN_SCHEMA: Final[Mapping[str, Any]] = {
    **ASK_SCHEMA,
    "$id": "joined_response.v1",
    "properties": {
        name: ASK_SCHEMA["properties"][name] for name in ("reasoning", "conclusion", "confidence", "error")
    },
}
"""The schema of an answer that joins findings. It has no sub-tasks."""

KEPT_CHARS: Final = 500
"""Maximum characters of a conclusion or user question in a frame and in a join."""

LONGEST_FINDING: Final[Mapping[str, Any]] = {
    "conclusion": "x" * KEPT_CHARS,
    "confidence": 0.25,
    "state": "unfinished",
}
"""The longest finding of a part, without its question."""

_MOST_ALTERNATIVES = 100
"""Maximum number of fallbacks of a call that are looked up in the record."""


class UndeliveredError(Exception):
    """A call was not made, or has no answer yet. It can be asked again."""


@dataclass(frozen=True, slots=True)
class FrameCall:
    """A call of a frame and its outcome. `answer` is None if the call failed."""

    envelope: LLMEnvelope
    outcome: StructuredOutcome
    answer: StructuredResponse | None

    @property
    def interaction_id(self) -> str:
        """The id of its last attempt, or of its envelope without attempts."""
        attempts = self.outcome.attempts
        return attempts[-1].interaction_id if attempts else self.envelope.envelope_id

    @property
    def failure(self) -> str:
        """The reason for a call without a usable answer, as in `FrameClosed.stopped_by`."""
        if self.answer is not None:
            return "model_error"
        error = self.outcome.error
        kind = FailureKind.INTERNAL_ERROR if error is None else error.category
        return "unusable" if kind == FailureKind.PARSING_ERROR else str(kind)

    @property
    def sent(self) -> int:
        """The number of attempts that were sent. Refused attempts do not count."""
        return sum(attempt.sent for attempt in self.outcome.attempts)


@dataclass(slots=True, eq=False)
class WorkingFrame:
    """A question in progress: its share of the money, its calls and its parts."""

    id: str
    question: str
    share_nusd: int
    parent: "WorkingFrame | None" = None
    place: int = 0
    priority: int | None = None
    is_closed: bool = False
    calls: list[FrameCall] = field(default_factory=list)
    parts: "list[WorkingFrame]" = field(default_factory=list)

    @property
    def above(self) -> "list[WorkingFrame]":
        """Its ancestors, the root last."""
        return [] if self.parent is None else [self.parent, *self.parent.above]

    @property
    def cost_nusd(self) -> int:
        """The cost of its own calls. Recorded answers count at their first cost."""
        return sum(attempt.original_cost_nusd for call in self.calls for attempt in call.outcome.attempts)

    @property
    def sent(self) -> int:
        """The number of attempts that were sent for it."""
        return sum(call.sent for call in self.calls)

    @property
    def left_nusd(self) -> int:
        """Its share minus the cost of its calls and of all its descendants."""
        return self.share_nusd - sum(frame.cost_nusd for frame in self.tree())

    def tree(self) -> "Iterator[WorkingFrame]":
        """Yield it and its descendants, parents first."""
        yield self
        for part in self.parts:
            yield from part.tree()


def is_finding(closed: FrameClosed) -> bool:
    """Return whether a part has a finding to join."""
    return closed.state in {"concluded", "repeated"} and bool(closed.conclusion)


def finding_of(part: WorkingFrame, closed: FrameClosed | None) -> dict[str, Any]:
    """Return the finding of a part for the join, or the longest one while it is open."""
    if closed is None:
        return {"question": part.question, **LONGEST_FINDING}
    has_found = is_finding(closed)
    return {
        "question": part.question,
        "conclusion": closed.conclusion if has_found else None,
        "confidence": closed.confidence if has_found else None,
        "state": closed.state,
    }


class FrameCalls:
    """Makes the calls of one tree, unless they are on record.

    `base` is the template of all envelopes. It has no instructions, context, schema, ids and limits of a
    call.
    """

    def __init__(self, gateway: StructuredGateway, base: LLMEnvelope, on_record: Sequence[Record]) -> None:
        self._gateway = gateway
        self._outcomes: dict[str, StructuredOutcome] = {}
        self._attempts: dict[str, list[LLMInteraction]] = {}
        self._asked: dict[str, LLMEnvelope] = {}
        for record in on_record:
            envelope = envelope_of(record)
            if envelope is None or envelope.tenant_id != base.tenant_id:
                continue
            if isinstance(record, LLMInteraction):
                self._attempts.setdefault(envelope.envelope_id, []).append(record)
            # An envelope without its secrets, or with fields of a newer release, would give another call.
            if envelope.is_intact and not envelope.model_extra:
                self._asked[envelope.envelope_id] = envelope
        self._sent_attempts = {
            envelope_id: {one.result.attempt_number: one.result.dispatched_at is not None for one in made}
            for envelope_id, made in self._attempts.items()
        }
        self.base = base
        self.limits = RecursionLimits(max_cost_nusd=0)

    @property
    def sent(self) -> int:
        """The number of attempts of the trace that were sent, as the ledger counts them."""
        return sum(map(sum, (numbers.values() for numbers in self._sent_attempts.values())))

    def begin(self, root: WorkingFrame, limits: RecursionLimits) -> None:
        """Set the limits. Use the recorded envelope of the root as template, if it exists."""
        self.limits = limits
        known = self._asked.get(self._id_of(root, "ask"), self.base)
        evidence = [
            item.model_copy(update={"retrieved_at": self.base.created_at})
            for item in known.retrieved_evidence
        ]
        kept = {name: getattr(self.base, name) for name in ("trace_id", "created_at", "deadline")}
        self.base = known.model_copy(update={**kept, "occurrence": 0, "retrieved_evidence": evidence})

    async def make(self, frame: WorkingFrame, envelope: LLMEnvelope) -> FrameCall:
        """Return the recorded or the new result of a call.

        Raises `UndeliveredError` if the call was not made, and any error of the gateway.
        """
        id_ = envelope.envelope_id
        outcome = self._outcomes.get(id_) or self._on_record(id_)
        if outcome is None or not (outcome.ok or frame.is_closed):
            # A failed call may have been interrupted before its fallback. It is asked again unless its frame is closed.
            # The gateway does not send recorded attempts again.
            outcome = await self._gateway.ask_structured(envelope)
        error = outcome.error
        if error is not None and error.category == FailureKind.UNDELIVERABLE and error.recoverable:
            raise UndeliveredError(error.description)
        self._outcomes[id_] = outcome
        declared = envelope.expected_output_schema["properties"]
        said = {name: value for name, value in (outcome.json or {}).items() if name in declared}
        answer = StructuredResponse.of(said, outcome.json_text) if outcome.ok else None
        call = FrameCall(envelope, outcome, answer)
        for attempt in outcome.attempts:
            self._sent_attempts.setdefault(attempt.envelope_id, {})[attempt.number] = attempt.sent
        frame.calls.append(call)
        return call

    def question(
        self,
        frame: WorkingFrame,
        *,
        name: str = "ask",
        cause: str,
        parent: str,
        answers: Sequence[Mapping[str, str]] = (),
    ) -> LLMEnvelope:
        """Return the envelope for a question. Equal questions give equal requests."""
        context: dict[str, Any] = {"question": frame.question}
        if answers:
            context["answers"] = answers
        return self._envelope(frame, name, ASK, ASK_SCHEMA, context, cause, parent)

    def join(
        self, frame: WorkingFrame, split: FrameCall, findings: Sequence[Mapping[str, Any]]
    ) -> LLMEnvelope:
        """Return the envelope that joins the findings of the parts of `split`."""
        context = {"question": frame.question, "findings": findings}
        return self._envelope(
            frame, "join", JOIN, JOIN_SCHEMA, context, split.interaction_id, split.envelope.envelope_id
        )

    def _envelope(
        self,
        frame: WorkingFrame,
        name: str,
        prompt: str,
        schema: Mapping[str, Any],
        context: Mapping[str, Any],
        cause: str,
        parent: str,
    ) -> LLMEnvelope:
        base, own, left = self.base, self.base.budget.max_cost_nusd, max(0, frame.left_nusd)
        ceilings = {
            "max_cost_nusd": left if own is None else min(own, left),
            "max_trace_cost_nusd": self.limits.max_cost_nusd,
            "max_trace_calls": self.limits.max_calls,
        }
        id_ = self._id_of(frame, name)
        made = base.model_copy(
            update={
                "envelope_id": id_,
                "idempotency_key": id_,
                "causation_id": cause,
                "parent_envelope_id": parent,
                "step": frame.id,
                "instructions": INSTRUCTIONS[prompt],
                "prompt_version": prompt,
                "context": context,
                "expected_output_schema": schema,
                "budget": base.budget.model_copy(update=ceilings),
            }
        )
        # A recorded envelope is reused with its times and limits, because a claim refuses another content under its id.
        known = self._asked.get(id_, made)
        return known if known.request_hash == made.request_hash else made

    def is_on_record(self, envelope: LLMEnvelope) -> bool:
        """Return whether an envelope was requested or has an attempt."""
        return envelope.envelope_id in self._asked or envelope.envelope_id in self._attempts

    def _id_of(self, frame: WorkingFrame, name: str) -> str:
        return derived_id(self.base.trace_id, frame.id, name)

    def _on_record(self, envelope_id: str) -> StructuredOutcome | None:
        """Return the recorded outcome of a call with its fallbacks, or None if incomplete."""
        chain = [
            envelope_id,
            *(derived_id("fallback", envelope_id, n) for n in range(1, _MOST_ALTERNATIVES + 1)),
        ]
        found = [self._attempts[one] for one in chain if one in self._attempts]
        if not found or all(one.result.next_step not in {"", "final"} for one in found[-1]):
            return None
        return outcome_of_chain([outcome_of(attempts) for attempts in found])


def envelope_of(record: Record) -> LLMEnvelope | None:
    """Return the envelope of an attempt or of a request, or None for other records."""
    if isinstance(record, LLMInteraction):
        return record.envelope
    body = KINDS.of(record)
    if not isinstance(body, CallRequested):
        return None
    return LLMEnvelope.from_wire(json_of(body.envelope), context=ON_RECORD)
