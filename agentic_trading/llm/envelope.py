"""The envelope: the request of an LLM call, with its limits and metadata."""

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
"""The version of the prompt text that `structured` adds to an envelope.

It is in the request hash, because this text can change the answer.
"""

_REQUEST_TAG = b"agentic/request/v1\0"
_ENVELOPE_TAG = b"agentic/envelope/v1\0"
_system_clock = SystemClock()

DEFAULT_TENANT: Final = "default"


class EnvelopeWorkflow(StrEnum):
    """The purpose of a call. Each workflow has its own topic and preset."""

    ANALYSIS = "analysis"
    PLANNING = "planning"
    EXECUTION = "execution"
    GENERAL = "general"


class LLMProvider(field_types.OpenName):
    """The name of a provider.

    Five names are built in. You may use your own, for example `LLMProvider("openai-eu")`.
    """

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    LOCAL = "local"
    RULES = "rules"
    SCRIPTED = "scripted"


class ResponseFormat(StrEnum):
    """The form of an answer.

    Attributes:
        VERBATIM: The context is a client's own request to an API (`api`, `body`), and the answer is the body
            of the API's answer. Both are passed on unchanged. See `llm/verbatim.py`.

    """

    JSON = "json"
    TEXT = "text"
    VERBATIM = "verbatim"


class DeterminismLevel(StrEnum):
    """How far a result can be reproduced.

    Attributes:
        PINNED: Model, effort, thinking, prompt and tools are fixed.
        GREEDY: Temperature 0 was sent.
        RECORDED: The first accepted answer is served again.
        REPLAY_ONLY: The network is not used. A missing record is an error.

    """

    PINNED = "pinned"
    GREEDY = "greedy"
    RECORDED = "recorded"
    REPLAY_ONLY = "replay_only"


Effort = Literal["low", "medium", "high", "xhigh", "max"]


class EvidenceItem(field_types.JsonModel, frozen=True, extra="allow"):
    """A piece of evidence for the model.

    The prompt names an item by its position (`E1`, `E2`, …). The builder uses the same name as the default
    id.

    Attributes:
        available_at: When the platform could have known it. It must not be after `as_of` of the envelope.
        retrieved_at: When it was read.

    """

    evidence_id: str
    source: str
    content: field_types.LazyJsonData
    retrieved_at: field_types.Moment = Field(default_factory=_system_clock.now)
    available_at: field_types.Moment | None = None


class LLMEnvelope(field_types.RevalidatedModel, frozen=True, extra="allow"):
    """The request of an LLM call. Build it with `EnvelopeBuilder`.

    An envelope is immutable at every depth: changing a list or an object in it raises `TypeError`. Get a
    mutable copy of these with `canonical.to_json_value`. Context, evidence and schema hold plain JSON:
    Decimals become strings, times become UTC text. Unknown fields of newer producers are kept.

    An envelope that was read keeps its hashes and its wire bytes. Defaults of fields that its writer did not
    know are not added to them. A copy computes its own hashes.

    Attributes:
        causation_id: The id of the direct cause: an event, an envelope or an interaction.
        idempotency_key: The call is charged once per key. Default: the envelope id.
        deadline: The answer is of no use after this time.
        as_of: The market time of the call. Dated evidence and context must not be newer.
        context_as_of: The time of the newest item in `context`.
        priority: A higher number is served first.
        subject: The symbol or topic.
        step: The step of the agent.
        occurrence: How often this request was made before in the step.
        must_understand: Fields that a worker must know. Otherwise, it refuses the envelope.
        request_hash: A hash of all that can change the answer, see `compute_request_hash`.
        envelope_hash: A checksum over all other fields.

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
        """Set a missing idempotency key and missing hashes, and freeze unknown fields."""
        for part in (self, self.retry_policy, *self.retrieved_evidence):
            if part.model_extra:
                field_types.freeze_extra(part)
        fields = self.__dict__
        if not fields["idempotency_key"]:
            fields["idempotency_key"] = fields["envelope_id"]
        # An empty checksum counts as not given, because `_is_read` would otherwise leave fields out of the
        # hash.
        if not fields["envelope_hash"]:
            self.model_fields_set.discard("envelope_hash")
        if not fields["request_hash"]:
            fields["request_hash"] = self.compute_request_hash()
        if not fields["envelope_hash"]:
            fields["envelope_hash"] = self.compute_envelope_hash()

    def asked_again(self, occurrence: int) -> Self:
        """Return the same request with another `occurrence`.

        Serialized parts and passed checks are reused. Only the checksum is computed again.
        """
        # Built again, because an envelope that was read may lack fields, and its new checksum covers all of
        # them.
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
        """Whether the first accepted answer is kept until the deadline and served again.

        The envelope must have the level `recorded` and an `as_of`, because without it the same words may mean
        another question an hour later.
        """
        return self.determinism is DeterminismLevel.RECORDED and self.as_of is not None

    def level(self, *, accepted: bool, sampling_applied: bool) -> DeterminismLevel:
        """Return the determinism level of a live answer.

        It may be lower than the requested `determinism`.

        Args:
            accepted: The answer passed all checks and came from the requested model.
            sampling_applied: The model accepts a temperature, and it was sent.

        """
        if accepted and self.is_cacheable:
            return DeterminismLevel.RECORDED
        is_greedy = sampling_applied and self.temperature == 0.0
        return DeterminismLevel.GREEDY if is_greedy else DeterminismLevel.PINNED

    @property
    def replayed_level(self) -> DeterminismLevel:
        """The determinism level of an answer from a recording."""
        is_demanded = self.determinism is DeterminismLevel.REPLAY_ONLY
        return DeterminismLevel.REPLAY_ONLY if is_demanded else DeterminismLevel.RECORDED

    @field_types.lazy_property
    def context_json(self) -> bytes:
        """The context in canonical JSON. It is serialized once for hash, prompt and wire."""
        return field_types.json_of(self.__dict__["context"])

    @field_types.lazy_property
    def evidence_json(self) -> list[bytes]:
        """The content of each evidence item in canonical JSON."""
        return field_types.FrozenList(
            field_types.json_of(item.__dict__["content"]) for item in self.retrieved_evidence
        )

    @field_types.lazy_property
    def requested_evidence(self) -> Sequence[Mapping[str, Any]]:
        """The hashed part of each item: `available_at`, serialized content, source."""
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
        """Return `rk1:` and the SHA-256 of all that can change the answer.

        Not included: ids, times other than `as_of` and `available_at`, tenant, agent, subject, step,
        occurrence, retry policy and cost limits.
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
            # Without defaults if it was read, because its writer may not have known all fields of the policy.
            "output_policy": Fragment(policy.given_wire if self._is_read else policy.wire),
            "prompt_version": self.prompt_version,
            "as_of": _utc(self.as_of),
        }
        return "rk1:" + sha256_hex(_REQUEST_TAG, assembled_bytes(request))

    def compute_envelope_hash(self) -> str:
        """Return the checksum of all other fields: 16 hex digits of SHA-256.

        It is not a signature.
        """
        return sha256_hex(_ENVELOPE_TAG, self._hashed_json)[:16]

    @field_types.lazy_property
    def wire(self) -> bytes:
        """The envelope for the bus and the log, as canonical JSON.

        The checksum is the last member.
        """
        return b'%b,"envelope_hash":"%b"}' % (self._hashed_json[:-1], self.envelope_hash.encode())

    @classmethod
    def from_wire(cls, raw: bytes, *, context: object = field_types.AS_READ) -> Self:
        """Read an envelope and keep its bytes.

        The checksum is not verified: see `is_intact`.

        Args:
            raw: The bytes of `wire`.
            context: With `ON_RECORD`, unknown words are kept. A worker does not run an envelope that has one.

        Raises:
            ValidationError: A `ValueError` of pydantic, if the bytes are not an envelope.

        """
        try:
            envelope = cls.model_validate(
                from_json(raw, allow_inf_nan=False, cache_strings="keys"), context=context
            )
        except ValueError:
            # Raises pydantic's own error, unless the only fault is a NaN or an infinity: pydantic reads
            # these.
            return cls.model_validate_json(raw)
        tail = b',"envelope_hash":"%b"}' % envelope.envelope_hash.encode()
        if raw.endswith(tail):
            envelope.__dict__["_hashed_json"] = raw[: -len(tail)] + b"}"
            envelope.__dict__["wire"] = raw
        return envelope

    @property
    def is_intact(self) -> bool:
        """Whether the stored checksum matches the fields.

        Raises:
            CanonicalError: If a field has no canonical JSON. A builder rejects such a field.

        """
        return self.envelope_hash == self.compute_envelope_hash()

    @property
    def _is_read(self) -> bool:
        """Whether the envelope was read with its checksum.

        The checksum covers only fields that its writer set.
        """
        return "envelope_hash" in self.model_fields_set

    @field_types.lazy_property
    def _hashed_json(self) -> bytes:
        """All fields except the checksum, in canonical JSON."""
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
        # The checksum of a writer of another release holds only for the fields that it wrote, so that
        # defaults of fields that it did not know must stay out.
        if is_read:
            fields = {name: value for name, value in fields.items() if name in self.model_fields_set}
        if self.model_extra:
            return canonical_bytes({**fields, **self.model_extra})
        return assembled_bytes(fields)

    @override
    def __getstate__(self) -> dict[Any, Any]:
        """Return the state without `requested_evidence`, which cannot be pickled."""
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
    """Return an item for the wire.

    If it was read, omit fields that its writer did not set.
    """
    fields = {**requested, "evidence_id": item.evidence_id, "retrieved_at": utc_text(item.retrieved_at)}
    if is_read:
        fields = {name: value for name, value in fields.items() if name in item.model_fields_set}
    return Fragment(canonical_bytes({**fields, **item.model_extra})) if item.model_extra else fields
