"""A builder of envelopes: set fields, then check all of them in `build()`."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from agentic_trading.canonical import CanonicalError, shown
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.ids import NewId, random_id
from agentic_trading.llm.envelope import (
    DeterminismLevel,
    Effort,
    EnvelopeWorkflow,
    LLMEnvelope,
    LLMProvider,
    ResponseFormat,
)
from agentic_trading.llm.envelope_rules import PRESETS, check_envelope
from agentic_trading.llm.errors import EnvelopeValidationError
from agentic_trading.llm.limits import LLMBudget, OutputPolicy, RetryPolicy, SafetyConstraints


class EnvelopeBuilder:
    """Build an `LLMEnvelope`. All methods but `build` return the builder.

    `build()` checks everything at once. You may call it several times: each envelope gets its own id.

    Example:
        envelope = (
            EnvelopeBuilder()
            .for_analysis()
            .with_instructions("Judge the trend from the evidence.")
            .add_evidence("indicators", {"rsi_14": 62.3})
            .with_output_schema({"type": "object", "properties": {"trend": {"enum": ["up", "down"]}}})
            .with_provider(LLMProvider.ANTHROPIC)
            .build()
        )

    Args:
        clock: Gives the times of creation and retrieval. Default: the system clock.
        ids: Makes envelope ids and trace ids. Default: random ids.

    """

    def __init__(self, *, clock: Clock | None = None, ids: NewId = random_id) -> None:
        self._clock: Clock = clock or SystemClock()
        self._ids = ids
        self._workflow = EnvelopeWorkflow.GENERAL
        self._fields: dict[str, Any] = {}
        self._evidence: list[dict[str, Any]] = []
        self._budget: dict[str, Any] = {}
        self._safety: dict[str, Any] = {}

    def for_analysis(self) -> Self:
        """Start from the analysis preset."""
        return self._for(EnvelopeWorkflow.ANALYSIS)

    def for_planning(self) -> Self:
        """Start from the planning preset."""
        return self._for(EnvelopeWorkflow.PLANNING)

    def for_execution(self) -> Self:
        """Start from the execution preset: strict reading, and always temperature 0.0."""
        return self._for(EnvelopeWorkflow.EXECUTION)

    def for_general(self) -> Self:
        """Start from the general preset."""
        return self._for(EnvelopeWorkflow.GENERAL)

    def child_of(self, envelope: LLMEnvelope) -> Self:
        """Set trace, tenant, cause and parent from another envelope."""
        return self._set(
            trace_id=envelope.trace_id,
            causation_id=envelope.envelope_id,
            parent_envelope_id=envelope.envelope_id,
            tenant_id=envelope.tenant_id,
        )

    def with_instructions(self, instructions: str, *, prompt_version: str = "") -> Self:
        """Set the instructions to the model.

        Args:
            instructions: The text. It must not be empty.
            prompt_version: The version name of this text. It is part of the request hash.

        """
        self._set(instructions=instructions)
        return self._set(prompt_version=prompt_version) if prompt_version else self

    def with_context(self, context: Mapping[str, Any], *, as_of: datetime | None = None) -> Self:
        """Set the state of the platform that the model sees.

        Args:
            context: A JSON object. Decimals and times are allowed in it.
            as_of: The time of the newest item in `context`.

        """
        self._set(context=dict(context))
        return self._set(context_as_of=as_of) if as_of else self

    def add_evidence(
        self,
        source: str,
        content: Any,
        *,
        evidence_id: str = "",
        available_at: datetime | None = None,
    ) -> Self:
        """Add a piece of evidence.

        Args:
            source: The name of its source.
            content: Any JSON value. Decimals and times are allowed in it.
            evidence_id: 1 to 128 of `A-Z a-z 0-9 . _ : -`. Default: its position (`E1`, `E2`, …), which is
                also its name in the prompt.
            available_at: When the platform could have known it. It must not be after `as_of`.

        """
        self._evidence.append({
            "evidence_id": evidence_id or f"E{len(self._evidence) + 1}",
            "source": source,
            "content": content,
            "available_at": available_at,
        })
        return self

    def with_tools(self, *names: str) -> Self:
        """Set the names of the tools that the model may call."""
        return self._set(tools_allowed=list(names))

    def with_budget(
        self,
        *,
        max_output_tokens: int | None = None,
        thinking_budget: int | None = None,
        max_input_tokens: int | None = None,
        max_cost_nusd: int | None = None,
        max_cost_usd: float | None = None,
        max_calls_per_day: int | None = None,
        max_trace_cost_nusd: int | None = None,
        max_trace_calls: int | None = None,
    ) -> Self:
        """Limit tokens, cost and calls.

        Limits that you omit keep the preset's value.

        Args:
            max_output_tokens: Tokens of the answer, for each attempt.
            thinking_budget: Tokens of thinking, for each attempt, in addition to `max_output_tokens`.
            max_input_tokens: Tokens of the request, for each attempt.
            max_cost_nusd: Nano-dollars for all attempts of the envelope.
            max_cost_usd: The same in dollars. Give one of the two.
            max_calls_per_day: Calls of the agent in a day.
            max_trace_cost_nusd: Nano-dollars for all calls of the trace, earlier calls included.
            max_trace_calls: Calls of the trace, earlier calls included.

        """
        given = {name: value for name, value in locals().items() if name != "self" and value is not None}
        self._budget.update(given)
        return self

    def with_output_schema(self, schema: Mapping[str, Any] | type[BaseModel]) -> Self:
        """Ask for an answer that fits a JSON Schema or a pydantic model.

        Only the JSON Schema of a model is sent to the worker. The model's own validators run where you read
        the answer.

        Raises:
            EnvelopeValidationError: If `schema` is neither, or a model without a JSON Schema.

        """
        return self._set(expected_output_schema=_json_schema(schema))

    def with_output_policy(self, policy: OutputPolicy) -> Self:
        """Replace the preset's policy for asking for and reading the answer."""
        return self._set(output_policy=policy)

    def with_response_format(self, response_format: ResponseFormat) -> Self:
        """Ask for JSON or text."""
        return self._set(response_format=response_format)

    def with_safety(
        self,
        *,
        require_deterministic: bool | None = None,
        require_json: bool | None = None,
    ) -> Self:
        """Require guarantees. Those that you omit keep the preset's value."""
        given = {name: value for name, value in locals().items() if name != "self" and value is not None}
        self._safety.update(given)
        return self

    def with_provider(self, provider: LLMProvider, model: str = "") -> Self:
        """Set the provider and the model.

        Without a model, `build()` uses the preset's model for Anthropic. Other providers need a model.
        """
        return self._set(provider=provider, model=model)

    def with_temperature(self, temperature: float) -> Self:
        """Set the sampling temperature.

        `build()` rejects it if the workflow or the safety constraints forbid it.
        """
        return self._set(temperature=temperature)

    def with_effort(self, effort: Effort) -> Self:
        """Set the reasoning effort, for models that accept one."""
        return self._set(effort=effort)

    def with_determinism(self, level: DeterminismLevel) -> Self:
        """Require a determinism level."""
        return self._set(determinism=level)

    def with_retry_policy(self, policy: RetryPolicy) -> Self:
        """Replace the default retry policy.

        Raises:
            EnvelopeValidationError: If the policy has an unknown field.

        """
        # A policy keeps unknown fields of newer producers. In a policy that you build, one is a misspelling.
        if policy.model_extra:
            unknown, allowed = (", ".join(names) for names in (policy.model_extra, RetryPolicy.model_fields))
            raise EnvelopeValidationError([f"retry_policy: unknown field {unknown}. Allowed: {allowed}"])
        return self._set(retry_policy=policy)

    def with_trace(self, trace_id: str = "", causation_id: str = "") -> Self:
        """Set the trace and the id of the direct cause. Empty values change nothing."""
        return self._set(**{
            k: v for k, v in {"trace_id": trace_id, "causation_id": causation_id}.items() if v
        })

    def with_agent(self, agent_id: str, agent_type: str = "") -> Self:
        """Set the id and the type of the calling agent."""
        return self._set(agent_id=agent_id, agent_type=agent_type)

    def with_tenant(self, tenant_id: str) -> Self:
        """Set the tenant."""
        return self._set(tenant_id=tenant_id)

    def with_subject(self, subject: str, *, step: str = "", occurrence: int = 0) -> Self:
        """Set the subject of the call.

        Args:
            subject: The symbol or topic.
            step: The step of the agent.
            occurrence: How often this request was made before in the step.

        """
        return self._set(subject=subject, step=step, occurrence=occurrence)

    def with_as_of(self, as_of: datetime) -> Self:
        """Set the market time.

        `build()` rejects dated evidence and context that are newer.
        """
        return self._set(as_of=as_of)

    def with_deadline(self, deadline: datetime) -> Self:
        """Set the time after which the answer is of no use."""
        return self._set(deadline=deadline)

    def with_priority(self, priority: int) -> Self:
        """Replace the preset's priority. A higher number is served first."""
        return self._set(priority=priority)

    def with_idempotency_key(self, key: str) -> Self:
        """Set the key under which this call is charged once.

        It is charged once however often it is delivered. Default: the envelope id.
        """
        return self._set(idempotency_key=key)

    def with_must_understand(self, *fields: str) -> Self:
        """Set fields that a worker must know. Otherwise, it refuses the envelope."""
        return self._set(must_understand=list(fields))

    def build(self) -> LLMEnvelope:
        """Check all fields and return the envelope, frozen and hashed.

        Raises:
            EnvelopeValidationError: If a rule is broken. `problems` lists all of them.
            LookAheadError: If dated evidence or context is newer than `as_of`.

        """
        if not str(self._fields.get("instructions", "")).strip():
            raise EnvelopeValidationError(["instructions are missing: describe the task of the model"])
        try:
            envelope = LLMEnvelope.model_validate(self._collected())
        except ValidationError as e:
            raise EnvelopeValidationError([_problem(error) for error in e.errors()]) from e
        except CanonicalError as e:
            raise EnvelopeValidationError([str(e)]) from e
        except (TypeError, ValueError, ArithmeticError) as e:
            raise EnvelopeValidationError([f"a value has no JSON spelling: {e}"]) from e
        check_envelope(envelope)
        return envelope

    def _collected(self) -> dict[str, Any]:
        preset = PRESETS[self._workflow]
        now = self._clock.now()
        fields = {
            "workflow": self._workflow,
            "envelope_id": self._ids(),
            "created_at": now,
            "budget": LLMBudget.model_validate({**preset.budget.model_dump(), **self._budget})
            if self._budget
            else preset.budget,
            "safety_constraints": SafetyConstraints(**{**preset.safety.model_dump(), **self._safety})
            if self._safety
            else preset.safety,
            "output_policy": preset.output,
            "determinism": preset.determinism,
            "priority": preset.priority,
            "retrieved_evidence": [{"retrieved_at": now, **item} for item in self._evidence],
            **self._fields,
        }
        if not fields.get("model") and fields.get("provider", LLMProvider.ANTHROPIC) == LLMProvider.ANTHROPIC:
            fields["model"] = preset.model
        fields["trace_id"] = fields.get("trace_id") or self._ids()
        return fields

    def _for(self, workflow: EnvelopeWorkflow) -> Self:
        self._workflow = workflow
        return self

    def _set(self, **fields: Any) -> Self:
        self._fields.update(fields)
        return self


def _json_schema(schema: Any) -> dict[str, Any]:
    if isinstance(schema, Mapping):
        return dict(schema)
    allowed = "Pass a JSON Schema, or the class of a pydantic model that has one"
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        raise EnvelopeValidationError([f"expected_output_schema: {shown(schema)} is not accepted. {allowed}"])
    try:
        return schema.model_json_schema()
    except Exception as e:  # the model's own code may raise anything
        why = f"{schema.__name__} has no JSON Schema: {str(e).partition(chr(10))[0]:.160}"
        raise EnvelopeValidationError([f"expected_output_schema: {why}. {allowed}"]) from e


def _problem(error: Any) -> str:
    where, what = ".".join(map(str, error["loc"])), error["msg"].removeprefix("Value error, ")
    return f"{where}: {what} (was {shown(error.get('input'))})" if where else what
