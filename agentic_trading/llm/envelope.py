"""The mandatory contract of every LLM call: what goes in."""

from collections.abc import Mapping, Sequence
from copy import copy
from datetime import datetime
from enum import StrEnum
from operator import itemgetter
from typing import Any, Final, Literal, Self

from pydantic import Field
from pydantic_core import from_json
from typing_extensions import override

from agentic_trading.canonical import Fragment, assembled_bytes, canonical_bytes, sha256_hex, utc_text
from agentic_trading.clock import SystemClock
from agentic_trading.ids import random_id
from agentic_trading.llm import fields as field_types
from agentic_trading.llm.limits import LLMBudget, OutputPolicy, RetryPolicy, SafetyConstraints

SCHEMA_VERSION = "1.0"
PROMPT_FRAME = "2"
"""The version of the prompt text that `structured` puts around an envelope; it too can change an answer."""

_REQUEST_TAG = b"agentic/request/v1\0"
_ENVELOPE_TAG = b"agentic/envelope/v1\0"
_system_clock = SystemClock()

DEFAULT_TENANT: Final = "default"


class EnvelopeWorkflow(StrEnum):
    """What a call is for; each has its own lane and presets."""

    ANALYSIS = "analysis"
    PLANNING = "planning"
    EXECUTION = "execution"
    GENERAL = "general"


class LLMProvider(field_types.OpenName):
    """Who answers: five names are built in, and any other one is the platform's own, such as `LLMProvider("openai-eu")`."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    LOCAL = "local"
    RULES = "rules"
    SCRIPTED = "scripted"


class ResponseFormat(StrEnum):
    """What form the answer has."""

    JSON = "json"
    TEXT = "text"


class DeterminismLevel(StrEnum):
    """How far a result repeats itself; DECISIONS of the design call it a level, not a temperature.

    `pinned`: model, effort, thinking, prompt and tools are fixed · `greedy`: temperature 0 was really sent ·
    `recorded`: the first accepted answer is served again · `replay_only`: no network, a miss is an error.
    """

    PINNED = "pinned"
    GREEDY = "greedy"
    RECORDED = "recorded"
    REPLAY_ONLY = "replay_only"


Effort = Literal["low", "medium", "high", "xhigh", "max"]


class EvidenceItem(field_types.JsonModel, frozen=True, extra="allow"):
    """One piece of evidence. `available_at` is when the platform could have known it, `retrieved_at` when it was read.

    In the prompt an item is named by its place (`E1`, `E2`, …), which is also the id that the builder gives it.
    """

    evidence_id: str
    source: str
    content: field_types.LazyJsonData
    retrieved_at: field_types.Moment = Field(default_factory=_system_clock.now)
    available_at: field_types.Moment | None = None


class LLMEnvelope(field_types.RevalidatedModel, frozen=True, extra="allow"):
    """One LLM call, as it is asked for. Build it with `EnvelopeBuilder`; unknown fields of newer producers are kept.

    `context`, evidence and schema hold plain JSON: Decimals become strings, times UTC text. Nothing in it can be changed,
    however deep: `TypeError` says so. A list or object that can be is what `canonical.to_json_value` returns of one.
    `request_hash` covers what can change the answer and nothing else; `envelope_hash` covers every field.
    Both are stored: a loaded envelope keeps the hashes it was written with, and its wire bytes and checksum stay
    those of the fields that it was given, without the defaults of fields that its writer did not know. A copy has
    hashes of its own.
    """

    schema_version: str = SCHEMA_VERSION
    envelope_id: str = Field(default_factory=random_id)
    trace_id: str = Field(default_factory=random_id)
    causation_id: str = ""
    parent_envelope_id: str = ""
    idempotency_key: str = ""
    tenant_id: str = DEFAULT_TENANT
    created_at: field_types.Moment = Field(default_factory=_system_clock.now)
    deadline: field_types.Moment | None = None
    as_of: field_types.Moment | None = None
    context_as_of: field_types.Moment | None = None
    priority: int = Field(default=0, ge=-(2**31), le=2**31)
    subject: str = ""
    step: str = ""
    occurrence: field_types.Count = 0
    workflow: field_types.Open[EnvelopeWorkflow] = EnvelopeWorkflow.GENERAL
    agent_id: str = ""
    agent_type: str = ""
    instructions: str
    prompt_version: str = ""
    context: field_types.LazyJsonObject = Field(default_factory=field_types.FrozenObject)
    retrieved_evidence: field_types.FrozenItems[EvidenceItem] = Field(default_factory=field_types.FrozenList)
    tools_allowed: field_types.FrozenItems[str] = Field(default_factory=field_types.FrozenList)
    budget: LLMBudget = LLMBudget()
    expected_output_schema: field_types.JsonSchema = Field(default_factory=field_types.FrozenObject)
    safety_constraints: SafetyConstraints = SafetyConstraints()
    response_format: field_types.Open[ResponseFormat] = ResponseFormat.JSON
    output_policy: OutputPolicy = OutputPolicy()
    provider: LLMProvider = LLMProvider.ANTHROPIC
    model: str = ""
    temperature: float = Field(default=0.0, ge=0.0, le=2.0, allow_inf_nan=False)
    effort: field_types.Open[Effort] | None = None
    determinism: field_types.Open[DeterminismLevel] = DeterminismLevel.PINNED
    retry_policy: RetryPolicy = RetryPolicy()
    must_understand: field_types.FrozenItems[str] = Field(default_factory=field_types.FrozenList)
    request_hash: str = ""
    envelope_hash: str = ""

    @override
    def model_post_init(self, _context: Any, /) -> None:
        """Fill what follows from the other fields, idempotency key and both hashes, and freeze those not known here."""
        for part in (self, self.retry_policy, *self.retrieved_evidence):
            if part.model_extra:
                field_types.freeze_extra(part)
        fields = self.__dict__
        if not fields["idempotency_key"]:
            fields["idempotency_key"] = fields["envelope_id"]
        if not fields["envelope_hash"]:
            self.model_fields_set.discard("envelope_hash")
        if not fields["request_hash"]:
            fields["request_hash"] = self.compute_request_hash()
        if not fields["envelope_hash"]:
            fields["envelope_hash"] = self.compute_envelope_hash()

    def asked_again(self, occurrence: int) -> Self:
        """Return it as the request of that number; what is spelled and was checked of it stays, but for its seal."""
        if self._is_read:
            return self.model_copy(update={"occurrence": occurrence})
        again = copy(self)
        fields = again.__dict__
        fields["occurrence"] = occurrence
        again.model_fields_set.add("occurrence")
        for spelled in ("_hashed_json", "wire"):
            fields.pop(spelled, None)
        fields["envelope_hash"] = again.compute_envelope_hash()
        return again

    @property
    def is_cacheable(self) -> bool:
        """Whether the first accepted answer is kept until the deadline, and served again.

        The envelope must ask for `recorded` and state its moment of the market: without `as_of` the same words may mean
        another question an hour later.
        """
        return self.determinism is DeterminismLevel.RECORDED and self.as_of is not None

    def level(self, *, accepted: bool, sampling_applied: bool) -> DeterminismLevel:
        """Return the level that a live answer really has, which may be lower than `determinism` asks for.

        `accepted`: the answer passed every check and came from the requested model. `sampling_applied`: the model
        takes a temperature, and it was sent.
        """
        if accepted and self.is_cacheable:
            return DeterminismLevel.RECORDED
        is_greedy = sampling_applied and self.temperature == 0.0
        return DeterminismLevel.GREEDY if is_greedy else DeterminismLevel.PINNED

    @property
    def replayed_level(self) -> DeterminismLevel:
        """The level of an answer that comes from a recording, the same each time."""
        is_demanded = self.determinism is DeterminismLevel.REPLAY_ONLY
        return DeterminismLevel.REPLAY_ONLY if is_demanded else DeterminismLevel.RECORDED

    @field_types.lazy_property
    def context_json(self) -> bytes:
        """The context in canonical JSON, spelled once for hash, prompt and wire."""
        return field_types.json_of(self.__dict__["context"])

    @field_types.lazy_property
    def evidence_json(self) -> list[bytes]:
        """The content of each evidence item in canonical JSON."""
        return field_types.FrozenList(
            field_types.json_of(item.__dict__["content"]) for item in self.retrieved_evidence
        )

    @field_types.lazy_property
    def requested_evidence(self) -> Sequence[Mapping[str, Any]]:
        """Each evidence item as the request has it: when it was available, its content as it was spelled, its source."""
        return field_types.FrozenList(
            field_types.FrozenObject(
                available_at=_utc(item.available_at), content=Fragment(content), source=item.source
            )
            for item, content in zip(self.retrieved_evidence, self.evidence_json, strict=True)
        )

    @field_types.lazy_property
    def output_schema_json(self) -> bytes:
        """The expected output schema in canonical JSON."""
        return field_types.json_of(self.expected_output_schema)

    def compute_request_hash(self) -> str:
        """Return `rk1:` and the SHA-256 over all that can change the answer.

        Not in it: ids, times other than `as_of` and `available_at`, tenant, agent, subject, step, occurrence,
        retry policy, cost ceilings.
        """
        policy, budget = self.output_policy, self.budget
        request = {
            "prompt_frame": PROMPT_FRAME,
            "instructions": self.instructions,
            "context": Fragment(self.context_json),
            "evidence": self.requested_evidence,
            "tools": self.tools_allowed,
            "schema": Fragment(self.output_schema_json),
            "response_format": self.response_format,
            "provider": self.provider,
            "model": self.model,
            "temperature": _integer_if_whole(self.temperature),
            "effort": self.effort,
            "thinking_budget": budget.thinking_budget,
            "max_output_tokens": budget.max_output_tokens,
            "output_policy": Fragment(policy.given_wire if self._is_read else policy.wire),
            "prompt_version": self.prompt_version,
            "as_of": _utc(self.as_of),
        }
        return "rk1:" + sha256_hex(_REQUEST_TAG, assembled_bytes(request))

    def compute_envelope_hash(self) -> str:
        """Return the first 16 hex digits of SHA-256 over every field but this one: a checksum, not a signature."""
        return sha256_hex(_ENVELOPE_TAG, self._hashed_json)[:16]

    @field_types.lazy_property
    def wire(self) -> bytes:
        """The envelope on the wire and in the log: canonical JSON, its checksum as the last member."""
        return b'%b,"envelope_hash":"%b"}' % (self._hashed_json[:-1], self.envelope_hash.encode())

    @classmethod
    def from_wire(cls, raw: bytes, *, context: object = field_types.AS_READ) -> Self:
        """Read an envelope and keep its bytes. The checksum is not verified here: see `is_intact`.

        With the context `ON_RECORD`, unknown words are kept; a worker does not run an envelope that has one. Raises pydantic's `ValidationError` (a `ValueError`) for anything that is not an envelope.
        """
        try:
            envelope = cls.model_validate(
                from_json(raw, allow_inf_nan=False, cache_strings="keys"), context=context
            )
        except ValueError:
            return cls.model_validate_json(raw)  # raises, but for a number that JSON does not have
        tail = b',"envelope_hash":"%b"}' % envelope.envelope_hash.encode()
        if raw.endswith(tail):
            envelope.__dict__["_hashed_json"] = raw[: -len(tail)] + b"}"
            envelope.__dict__["wire"] = raw
        return envelope

    @property
    def is_intact(self) -> bool:
        """Whether the stored checksum is that of the fields.

        Raises `CanonicalError` for contents that no builder would have let through.
        """
        return self.envelope_hash == self.compute_envelope_hash()

    @property
    def _is_read(self) -> bool:
        """Whether this was read with its checksum, which covers only the fields that its writer gave."""
        return "envelope_hash" in self.model_fields_set

    @field_types.lazy_property
    def _hashed_json(self) -> bytes:
        """All fields but the checksum, which covers them, in canonical JSON."""
        is_read = self._is_read
        fields: dict[str, Any] = dict(zip(_WIRE_FIELDS, _wire_values(self.__dict__), strict=True))
        fields["context"] = Fragment(self.context_json)
        fields["expected_output_schema"] = Fragment(self.output_schema_json)
        fields["retrieved_evidence"] = [
            _evidence_on_wire(item, requested, is_read=is_read)
            for item, requested in zip(self.retrieved_evidence, self.requested_evidence, strict=True)
        ]
        for name in _NESTED_MODELS:
            fields[name] = Fragment(fields[name].given_wire if is_read else fields[name].wire)
        for name in _MOMENTS:
            fields[name] = _utc(fields[name])
        fields["temperature"] = _integer_if_whole(self.temperature)
        if is_read:
            fields = {name: value for name, value in fields.items() if name in self.model_fields_set}
        if self.model_extra:
            return canonical_bytes({**fields, **self.model_extra})
        return assembled_bytes(fields)

    @override
    def __getstate__(self) -> dict[Any, Any]:
        """Return what is pickled: all but the request's evidence, of which the encoder's fragments cannot be."""
        state = super().__getstate__()
        kept = {name: value for name, value in state["__dict__"].items() if name != "requested_evidence"}
        return {**state, "__dict__": kept}

    @override
    def _stale(self, update: Mapping[str, Any]) -> set[str]:
        has_default_key = self.idempotency_key == self.envelope_id
        return {"request_hash", "envelope_hash", *(["idempotency_key"] if has_default_key else [])}


_WIRE_FIELDS = tuple(sorted(LLMEnvelope.model_fields.keys() - {"envelope_hash"}))
_wire_values = itemgetter(*_WIRE_FIELDS)
_MOMENTS = ("created_at", "deadline", "as_of", "context_as_of")
_NESTED_MODELS = ("budget", "safety_constraints", "output_policy", "retry_policy")


def _integer_if_whole(value: float) -> float | int:
    return int(value) if value.is_integer() else value


def _utc(value: datetime | None) -> str | None:
    return None if value is None else utc_text(value)


def _evidence_on_wire(item: EvidenceItem, requested: Mapping[str, Any], *, is_read: bool) -> Any:
    """Return an item as the wire has it; one that was read, without the defaults of fields that its writer did not know."""
    fields = {**requested, "evidence_id": item.evidence_id, "retrieved_at": utc_text(item.retrieved_at)}
    if is_read:
        fields = {name: value for name, value in fields.items() if name in item.model_fields_set}
    return Fragment(canonical_bytes({**fields, **item.model_extra})) if item.model_extra else fields
