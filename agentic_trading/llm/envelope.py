"""The mandatory contract of every LLM call: what goes in."""

from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field, ValidationInfo
from typing_extensions import override

from agentic_trading.canonical import Fragment, canonical_bytes, plain, sha256_hex, utc_text
from agentic_trading.clock import SystemClock
from agentic_trading.ids import random_id
from agentic_trading.llm.limits import LLMBudget, OutputPolicy, RetryPolicy, SafetyConstraints

SCHEMA_VERSION = "1.0"
PROMPT_FRAME = "1"
"""The version of the words that `structured` puts around an envelope; they too can change an answer."""

_REQUEST_TAG = b"agentic/request/v1\0"
_ENVELOPE_TAG = b"agentic/envelope/v1\0"
_system_clock = SystemClock()


class EnvelopeWorkflow(StrEnum):
    """What a call is for; each has its own lane and presets."""

    ANALYSIS = "analysis"
    PLANNING = "planning"
    EXECUTION = "execution"
    GENERAL = "general"


class LLMProvider(StrEnum):
    """Who answers."""

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


def _plain_json(value: Any, info: ValidationInfo) -> Any:
    return value if info.mode == "json" else plain(value)


JsonData = Annotated[Any, BeforeValidator(_plain_json)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(_plain_json)]


class EvidenceItem(BaseModel, frozen=True, extra="allow"):
    """One piece of evidence. `available_at` is when the platform could have known it, `retrieved_at` when it was read.

    In the prompt an item is named by its place (`E1`, `E2`, …), which is also the id that the builder gives it.
    """

    evidence_id: str
    source: str
    content: JsonData
    retrieved_at: AwareDatetime = Field(default_factory=_system_clock.now)
    available_at: AwareDatetime | None = None


class LLMEnvelope(BaseModel, frozen=True, extra="allow"):
    """One LLM call, as it is asked for. Build it with `EnvelopeBuilder`; unknown fields of newer producers are kept.

    `context`, evidence and schema hold plain JSON: Decimals become strings, times UTC text.
    `request_hash` covers what can change the answer and nothing else; `envelope_hash` covers every field.
    Both are stored: a loaded envelope keeps the hashes it was written with.
    """

    schema_version: str = SCHEMA_VERSION
    envelope_id: str = Field(default_factory=random_id)
    trace_id: str = Field(default_factory=random_id)
    causation_id: str = ""
    parent_envelope_id: str = ""
    idempotency_key: str = ""
    tenant_id: str = "default"
    created_at: AwareDatetime = Field(default_factory=_system_clock.now)
    deadline: AwareDatetime | None = None
    as_of: AwareDatetime | None = None
    context_as_of: AwareDatetime | None = None
    priority: int = 0
    subject: str = ""
    step: str = ""
    occurrence: int = Field(default=0, ge=0)
    workflow: EnvelopeWorkflow = EnvelopeWorkflow.GENERAL
    agent_id: str = ""
    agent_type: str = ""
    instructions: str
    prompt_version: str = ""
    context: JsonObject = Field(default_factory=dict)
    retrieved_evidence: list[EvidenceItem] = Field(default_factory=list)
    tools_allowed: list[str] = Field(default_factory=list)
    budget: LLMBudget = LLMBudget()
    expected_output_schema: JsonObject = Field(default_factory=dict)
    safety_constraints: SafetyConstraints = SafetyConstraints()
    response_format: ResponseFormat = ResponseFormat.JSON
    output_policy: OutputPolicy = OutputPolicy()
    provider: LLMProvider = LLMProvider.ANTHROPIC
    model: str = ""
    temperature: float = Field(default=0.0, ge=0.0, le=2.0, allow_inf_nan=False)
    effort: Effort | None = None
    determinism: DeterminismLevel = DeterminismLevel.PINNED
    retry_policy: RetryPolicy = RetryPolicy()
    must_understand: list[str] = Field(default_factory=list)
    request_hash: str = ""
    envelope_hash: str = ""

    @override
    def model_post_init(self, _context: Any, /) -> None:
        """Fill what follows from the other fields: idempotency key and both hashes."""
        if not self.idempotency_key:
            self.__dict__["idempotency_key"] = self.envelope_id
        if not self.request_hash:
            self.__dict__["request_hash"] = self.compute_request_hash()
        if not self.envelope_hash:
            self.__dict__["envelope_hash"] = self.compute_envelope_hash()

    @cached_property
    def context_json(self) -> bytes:
        """The context in canonical JSON, spelled once for hash, prompt and wire."""
        return canonical_bytes(self.context)

    @cached_property
    def evidence_json(self) -> list[bytes]:
        """The content of each evidence item in canonical JSON."""
        return [canonical_bytes(item.content) for item in self.retrieved_evidence]

    @cached_property
    def output_schema_json(self) -> bytes:
        """The expected output schema in canonical JSON."""
        return canonical_bytes(self.expected_output_schema)

    def compute_request_hash(self) -> str:
        """Return `rk1:` and the SHA-256 over all that can change the answer.

        Not in it: ids, times other than `as_of` and `available_at`, tenant, agent, subject, step, occurrence,
        retry policy, cost ceilings.
        """
        evidence = [
            {"source": item.source, "available_at": _moment(item.available_at), "content": Fragment(content)}
            for item, content in zip(self.retrieved_evidence, self.evidence_json, strict=True)
        ]
        request = {
            "prompt_frame": PROMPT_FRAME,
            "instructions": self.instructions,
            "context": Fragment(self.context_json),
            "context_as_of": _moment(self.context_as_of),
            "evidence": evidence,
            "tools": self.tools_allowed,
            "schema": Fragment(self.output_schema_json),
            "response_format": self.response_format,
            "provider": self.provider,
            "model": self.model,
            "temperature": _number(self.temperature),
            "effort": self.effort,
            "thinking_budget": self.budget.thinking_budget,
            "max_output_tokens": self.budget.max_output_tokens,
            "output_policy": Fragment(_spelled(self.output_policy)),
            "prompt_version": self.prompt_version,
            "as_of": _moment(self.as_of),
        }
        return "rk1:" + sha256_hex(_REQUEST_TAG, _sorted(request))

    def compute_envelope_hash(self) -> str:
        """Return the first 16 hex digits of SHA-256 over every field but this one: a checksum, not a signature."""
        return sha256_hex(_ENVELOPE_TAG, self._sealed_json)[:16]

    @cached_property
    def _sealed_json(self) -> bytes:
        fields = {name: value for name, value in self.__dict__.items() if name in _WIRE_FIELDS}
        fields.update(self.model_extra or {})
        fields["context"] = Fragment(self.context_json)
        fields["expected_output_schema"] = Fragment(self.output_schema_json)
        fields["retrieved_evidence"] = [
            Fragment(_evidence_json(item, content))
            for item, content in zip(self.retrieved_evidence, self.evidence_json, strict=True)
        ]
        for name in ("budget", "safety_constraints", "output_policy", "retry_policy"):
            fields[name] = Fragment(_spelled(fields[name]))
        fields["temperature"] = _number(self.temperature)
        if self.model_extra:
            return canonical_bytes(fields)
        return _sorted(fields)

    @cached_property
    def wire(self) -> bytes:
        """The envelope on the wire and in the log: canonical JSON, its checksum as the last member."""
        return b'%b,"envelope_hash":"%b"}' % (self._sealed_json[:-1], self.envelope_hash.encode())

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Read an envelope and keep its bytes. The checksum is not judged here: see `is_intact`.

        Raises pydantic's `ValidationError` (a `ValueError`) for anything that is not an envelope.
        """
        envelope = cls.model_validate_json(raw)
        tail = b',"envelope_hash":"%b"}' % envelope.envelope_hash.encode()
        if raw.endswith(tail) and b"NaN" not in raw and b"Infinity" not in raw:
            envelope.__dict__["_sealed_json"] = raw[: -len(tail)] + b"}"
            envelope.__dict__["wire"] = raw
        return envelope

    @property
    def is_intact(self) -> bool:
        """Whether the stored checksum is that of the fields.

        Raises `CanonicalError` for contents that no builder would have let through.
        """
        return self.envelope_hash == self.compute_envelope_hash()

    @override
    def model_copy(self, *, update: Any = None, deep: bool = False) -> Self:
        """Build a new, validated envelope with `update` applied and new hashes: a copy with stale hashes must not be."""
        fields: dict[str, Any] = {
            name: getattr(self, name) for name in _WIRE_FIELDS if name != "request_hash"
        }
        return type(self).model_validate({**fields, **(self.model_extra or {}), **(update or {})})


_WIRE_FIELDS = frozenset(LLMEnvelope.model_fields) - {"envelope_hash"}


def _sorted(fields: dict[str, Any]) -> bytes:
    return orjson.dumps(
        fields, default=_wire_scalar, option=orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME
    )


def _wire_scalar(value: Any) -> Any:
    if isinstance(value, datetime):
        return utc_text(value)
    raise TypeError(type(value).__name__)


def _moment(value: datetime | None) -> str | None:
    return None if value is None else utc_text(value)


def _number(value: float) -> float | int:
    return int(value) if value.is_integer() else value


def _spelled(part: BaseModel) -> bytes:
    """Spell a frozen part of an envelope once in its life: presets are shared by all envelopes."""
    spelled: bytes | None = part.__dict__.get("_spelled")
    if spelled is None:
        spelled = canonical_bytes(part.model_dump(mode="json"))
        part.__dict__["_spelled"] = spelled
    return spelled


def _evidence_json(item: EvidenceItem, content: bytes) -> bytes:
    fields = {
        **(item.model_extra or {}),
        "evidence_id": item.evidence_id,
        "source": item.source,
        "content": Fragment(content),
        "retrieved_at": item.retrieved_at,
        "available_at": item.available_at,
    }
    return canonical_bytes(fields) if item.model_extra else _sorted(fields)
