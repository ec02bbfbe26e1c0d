"""The mandatory contract of every LLM call: what goes in."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, Self

import orjson
from pydantic import BaseModel, Field
from typing_extensions import override

from agentic_trading.canonical import Fragment, canonical_bytes, sha256_hex, utc_text
from agentic_trading.clock import SystemClock
from agentic_trading.ids import random_id
from agentic_trading.llm.limits import LLMBudget, OutputPolicy, RetryPolicy, SafetyConstraints
from agentic_trading.llm.plain import JsonData, JsonObject, json_of
from agentic_trading.llm.rebuilt import Rebuilt
from agentic_trading.llm.spelling import Count, Moment

SCHEMA_VERSION = "1.0"
PROMPT_FRAME = "2"
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


class EvidenceItem(BaseModel, frozen=True, extra="allow"):
    """One piece of evidence. `available_at` is when the platform could have known it, `retrieved_at` when it was read.

    In the prompt an item is named by its place (`E1`, `E2`, …), which is also the id that the builder gives it.
    """

    evidence_id: str
    source: str
    content: JsonData
    retrieved_at: Moment = Field(default_factory=_system_clock.now)
    available_at: Moment | None = None


class LLMEnvelope(Rebuilt, frozen=True, extra="allow"):
    """One LLM call, as it is asked for. Build it with `EnvelopeBuilder`; unknown fields of newer producers are kept.

    `context`, evidence and schema hold plain JSON: Decimals become strings, times UTC text.
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
    tenant_id: str = "default"
    created_at: Moment = Field(default_factory=_system_clock.now)
    deadline: Moment | None = None
    as_of: Moment | None = None
    context_as_of: Moment | None = None
    priority: int = Field(default=0, ge=-(2**31), le=2**31)
    subject: str = ""
    step: str = ""
    occurrence: Count = 0
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
        if not self.envelope_hash:
            self.model_fields_set.discard("envelope_hash")
        if not self.idempotency_key:
            self.__dict__["idempotency_key"] = self.envelope_id
        if not self.request_hash:
            self.__dict__["request_hash"] = self.compute_request_hash()
        if not self.envelope_hash:
            self.__dict__["envelope_hash"] = self.compute_envelope_hash()

    @property
    def _is_read(self) -> bool:
        """Whether the checksum is another writer's, over the fields that it gave."""
        return "envelope_hash" in self.model_fields_set

    @cached_property
    def context_json(self) -> bytes:
        """The context in canonical JSON, spelled once for hash, prompt and wire."""
        return json_of(self.context)

    @cached_property
    def evidence_json(self) -> list[bytes]:
        """The content of each evidence item in canonical JSON."""
        return [json_of(item.content) for item in self.retrieved_evidence]

    @cached_property
    def evidence_ends(self) -> list[tuple[bytes, bytes]]:
        """Of each evidence item in canonical JSON: up to its content, and from its source on.

        What stands between them differs: nothing in the request's hash, the id and a time on the wire, the place in
        the prompt.
        """
        return [
            (
                b'{"available_at":%b,"content":%b' % (_quoted(item.available_at), content),
                b"," + _sorted({"source": item.source})[1:],
            )
            for item, content in zip(self.retrieved_evidence, self.evidence_json, strict=True)
        ]

    @cached_property
    def output_schema_json(self) -> bytes:
        """The expected output schema in canonical JSON."""
        return json_of(self.expected_output_schema)

    def compute_request_hash(self) -> str:
        """Return `rk1:` and the SHA-256 over all that can change the answer.

        Not in it: ids, times other than `as_of` and `available_at`, tenant, agent, subject, step, occurrence,
        retry policy, cost ceilings.
        """
        policy = self.output_policy.given_wire if self._is_read else self.output_policy.wire
        request = {
            "prompt_frame": PROMPT_FRAME,
            "instructions": self.instructions,
            "context": Fragment(self.context_json),
            "evidence": [Fragment(head + tail) for head, tail in self.evidence_ends],
            "tools": self.tools_allowed,
            "schema": Fragment(self.output_schema_json),
            "response_format": self.response_format,
            "provider": self.provider,
            "model": self.model,
            "temperature": _number(self.temperature),
            "effort": self.effort,
            "thinking_budget": self.budget.thinking_budget,
            "max_output_tokens": self.budget.max_output_tokens,
            "output_policy": Fragment(policy),
            "prompt_version": self.prompt_version,
            "as_of": _moment(self.as_of),
        }
        return "rk1:" + sha256_hex(_REQUEST_TAG, _sorted(request))

    def compute_envelope_hash(self) -> str:
        """Return the first 16 hex digits of SHA-256 over every field but this one: a checksum, not a signature."""
        return sha256_hex(_ENVELOPE_TAG, self._sealed_json)[:16]

    @cached_property
    def _sealed_json(self) -> bytes:
        is_read = self._is_read
        values = self.__dict__
        fields: dict[str, Any] = {name: values[name] for name in _WIRE_FIELDS}
        fields["context"] = Fragment(self.context_json)
        fields["expected_output_schema"] = Fragment(self.output_schema_json)
        fields["retrieved_evidence"] = [
            Fragment(_given_json(item) if is_read else _evidence_json(item, head, tail))
            for item, (head, tail) in zip(self.retrieved_evidence, self.evidence_ends, strict=True)
        ]
        for name in _PARTS:
            fields[name] = Fragment(fields[name].given_wire if is_read else fields[name].wire)
        fields["temperature"] = _number(self.temperature)
        if is_read:
            fields = {name: value for name, value in fields.items() if name in self.model_fields_set}
        if self.model_extra:
            return canonical_bytes({**fields, **self.model_extra})
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
    def _stale(self, update: Mapping[str, Any]) -> set[str]:
        has_default_key = self.idempotency_key == self.envelope_id
        return {"request_hash", "envelope_hash", *(["idempotency_key"] if has_default_key else [])}


_WIRE_FIELDS = frozenset(LLMEnvelope.model_fields) - {"envelope_hash"}
_PARTS = ("budget", "safety_constraints", "output_policy", "retry_policy")


def _sorted(fields: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(
            fields, default=_wire_scalar, option=orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME
        )
    except TypeError:
        return canonical_bytes(fields)  # which says where it cannot be spelled


def _wire_scalar(value: Any) -> Any:
    if isinstance(value, datetime):
        return utc_text(value)
    raise TypeError(type(value).__name__)


def _moment(value: datetime | None) -> str | None:
    return None if value is None else utc_text(value)


def _number(value: float) -> float | int:
    return int(value) if value.is_integer() else value


def _quoted(moment: datetime | None) -> bytes:
    return b"null" if moment is None else b'"%b"' % utc_text(moment).encode()


def _evidence_json(item: EvidenceItem, head: bytes, tail: bytes) -> bytes:
    if item.model_extra:
        return _evidence_of(item, EvidenceItem.model_fields)
    between = _sorted({"evidence_id": item.evidence_id, "retrieved_at": item.retrieved_at})
    return b"%b,%b%b" % (head, between[1:-1], tail)


def _given_json(item: EvidenceItem) -> bytes:
    """Spell the fields that another writer gave, without the defaults of those that it did not know."""
    return _evidence_of(item, item.model_fields_set)


def _evidence_of(item: EvidenceItem, names: Iterable[str]) -> bytes:
    fields = {name: getattr(item, name) for name in names}
    fields["content"] = Fragment(json_of(item.content))
    return canonical_bytes(fields | (item.model_extra or {}))
