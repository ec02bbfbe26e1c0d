"""Calls of clients: the envelope of a request, and the outcome of its call as a reply."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from agentic_trading.client.outcome import Attempt, StructuredOutcome
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope, LLMProvider, ResponseFormat
from agentic_trading.llm.errors import EnvelopeValidationError, FailureKind, FailureReason
from agentic_trading.llm.limits import LLMBudget, OutputPolicy, RetryPolicy
from agentic_trading.llm.result import Stage
from agentic_trading.llm.verbatim import VerbatimRequest, decoded_answer
from agentic_trading.server import chat_completions, errors, messages, responses
from agentic_trading.server.api_keys import ApiKey
from agentic_trading.server.causes import NO_CAUSE, Cause
from agentic_trading.server.fields import ClientRequest
from agentic_trading.structured.engine import schema_problem
from agentic_trading.structured.verbatim import WantedForm, wanted_form

INSTRUCTIONS: Final = "Answer the request in the context as it stands."

TRIES: Final = 3
"""How often the vendors' libraries send a request that timed out."""
_BETWEEN_TRIES_S: Final = 8.0
"""The longest time that these libraries wait between two tries."""
MOST_DEADLINE_S: Final = 86_400.0

AS_IT_COMES: Final = OutputPolicy(
    mode="native", decode="strict", candidates="whole", coerce=False, drop_extra=False, answers_read=1
)
"""The policy of an answer that is passed on."""

MOST_ANSWERS_READ: Final = 3
"""How many answers of a call are read if rejected ones are asked again."""

_OF_KEY: Final = "http:"

_TRACE = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")
_FOR: Final = {
    EnvelopeWorkflow.ANALYSIS: EnvelopeBuilder.for_analysis,
    EnvelopeWorkflow.PLANNING: EnvelopeBuilder.for_planning,
    EnvelopeWorkflow.GENERAL: EnvelopeBuilder.for_general,
}


def request_envelope(
    request: ClientRequest,
    key: ApiKey,
    headers: Mapping[str, str],
    *,
    trace: str,
    now: datetime,
    cause: Cause = NO_CAUSE,
) -> LLMEnvelope:
    """Return the envelope of a request.

    Args:
        request: The request.
        key: Its key.
        headers: Its headers.
        trace: The trace that the address names, or an empty text.
        now: The time of the request.
        cause: The answers that the request repeats.

    Raises:
        RequestError: If the key may not use the model, or a rule is broken.

    """
    named = key.model_of(request.model)
    if named is None:
        known = ", ".join(key.models) or "PROVIDER/MODEL of a served provider"
        raise errors.RequestError(
            errors.UNKNOWN_MODEL,
            f"the key {key.name} has no model {request.model!r:.200}. Allowed: {known}",
            param="model",
        )
    trace_id = trace or trace_in(headers, request.metadata)
    builder = _FOR[key.workflow](EnvelopeBuilder())
    builder.with_instructions(INSTRUCTIONS).with_context(_asked(request, headers).context)
    builder.with_response_format(ResponseFormat.VERBATIM).with_output_policy(AS_IT_COMES)
    # Text is allowed, because only the client knows what it has asked for.
    builder.with_safety(require_json=False)
    if (form := _form(request, key)) is not None:
        policy = (
            AS_IT_COMES.model_copy(update={"answers_read": MOST_ANSWERS_READ})
            if key.json_schema == "reask"
            else AS_IT_COMES
        )
        builder.with_output_schema(form.schema).with_output_policy(policy)
    builder.with_provider(LLMProvider(named[0]), named[1]).with_budget(**_limits(request, key))
    builder.with_retry_policy(RetryPolicy(attempt_timeout_s=key.attempt_timeout_s, park_s=key.park_s))
    builder.with_agent(key.agent, agent_type(key)).with_tenant(key.tenant)
    # A name of the client's own is also the step, so that a replay of two runs at once does not exchange their
    # answers. A `traceparent` is random in each run, so with it as the step no replay would find an answer.
    own_name = trace or _first_trace(
        headers.get("x-agentic-trace-id"), *_later_names(headers, request.metadata)
    )
    builder.with_trace(trace_id or cause.trace_id, cause.id).with_subject("", step=own_name)
    if (patience := useful_s(headers)) is not None:
        builder.with_deadline(now + timedelta(seconds=patience))
    try:
        return builder.build()
    except EnvelopeValidationError as e:
        raise errors.RequestError(errors.REFUSED_FIELD, str(e)) from e


def agent_type(key: ApiKey) -> str:
    """Return the agent type of a key's calls. It names the key, so that the log has the owner of the call."""
    return agent_type_of(key.name)


def agent_type_of(name: str) -> str:
    """Return the agent type of the calls of the API key with this name."""
    return f"{_OF_KEY}{name}"


def key_name_of(agent_type: str) -> str:
    """Return the name of the API key whose calls have this agent type."""
    return agent_type.removeprefix(_OF_KEY)


def _form(request: ClientRequest, key: ApiKey) -> WantedForm | None:
    """Return the form that the answer is validated against. A schema that we cannot read is left to the vendor."""
    # Several answers are not read, because each would need a verdict of its own.
    if key.json_schema == "pass" or request.choices > 1:
        return None
    form = wanted_form(request.api, request.fields)
    # A client's `$id` must not select a check of the platform.
    if form is None or "$id" in form.schema or schema_problem(form.schema, AS_IT_COMES) is not None:
        return None
    return form


def _asked(request: ClientRequest, headers: Mapping[str, str]) -> VerbatimRequest:
    if request.api != "messages":
        return VerbatimRequest(request.api, request.body)
    if betas := headers.get("anthropic-beta", ""):
        why = "a beta may have a price that no budget bounds. Allowed: a request without this header"
        raise errors.RequestError(
            errors.REFUSED_FIELD, f"anthropic-beta {betas!r:.200} is refused: {why}", param="anthropic-beta"
        )
    return VerbatimRequest(request.api, request.body, version=headers.get("anthropic-version", ""))


def _limits(request: ClientRequest, key: ApiKey) -> dict[str, Any]:
    """Return the ceilings of a key for a request. The output of all its answers is reserved."""
    budget = key.budget(request.cap)
    thinking = request.fields.get("thinking") if request.api == "messages" else None
    asked = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if isinstance(asked, int) and asked >= budget.max_output_tokens:
        raise errors.RequestError(
            errors.REFUSED_FIELD,
            f"a thinking budget of {asked} leaves no room in {budget.max_output_tokens} output tokens, the ceiling of "
            f"the key {key.name}",
            param="thinking.budget_tokens",
        )
    # Thinking is within the output ceiling, because vendors bill it as output.
    limits = {
        name: getattr(budget, name)
        for name in LLMBudget.model_fields
        if name not in {"max_output_tokens", "thinking_budget"}
    }
    return limits | {"max_output_tokens": budget.max_output_tokens * request.choices, "thinking_budget": 0}


def trace_in(headers: Mapping[str, str], metadata: Mapping[str, Any]) -> str:
    """Return the trace that a request names, or an empty text.

    The first one counts: `x-agentic-trace-id`, `traceparent`, `agentic_trace_id` of the metadata,
    `openai-project`.
    """
    parent = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    first = (headers.get("x-agentic-trace-id"), parent and parent[1])
    return _first_trace(*first, *_later_names(headers, metadata))


def _later_names(headers: Mapping[str, str], metadata: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the names that count after a `traceparent`."""
    return metadata.get("agentic_trace_id"), headers.get("openai-project")


def _first_trace(*names: Any) -> str:
    return next((name for name in names if isinstance(name, str) and is_trace(name)), "")


def is_trace(name: str) -> bool:
    """Return whether a name can be that of a trace."""
    return _TRACE.fullmatch(name) is not None


def useful_s(headers: Mapping[str, str]) -> float | None:
    """Return for how long an answer is of use, in seconds, or None for any time.

    It is as long as the client waits, its own tries included. A call that is cut at the client's time-out is
    charged in full, without an answer.
    """
    if (own := _seconds(headers.get("x-agentic-deadline-s"))) is not None:
        return own
    for name in ("x-stainless-read-timeout", "x-stainless-timeout"):
        if (wait := _seconds(headers.get(name))) is not None:
            return min(wait * TRIES + _BETWEEN_TRIES_S, MOST_DEADLINE_S)
    return None


def _seconds(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value <= MOST_DEADLINE_S else None


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply over HTTP, before it is written as a whole or as events.

    Attributes:
        body: The body of the answer or of the error.
        headers: The headers about the call.
        failure: The failure, or None for an answer.
        may_be_repeated: Whether the client's library may send the request again. False if anything was sent,
            because the gateway has repeated it as often as it is worth.

    """

    body: bytes
    headers: Mapping[str, str]
    failure: errors.HttpFailure | None = None
    may_be_repeated: bool = False

    @property
    def status(self) -> int:
        """The status."""
        return 200 if self.failure is None else self.failure.status


_VERDICTS: Final = {Stage.PASSED_ON: "passed_on", Stage.DONE: "accepted"}
"""The verdict of an answer. Any other stage rejected it. It goes to the client all the same."""


def call_reply(
    request: ClientRequest, envelope: LLMEnvelope, outcome: StructuredOutcome, zone: ZoneInfo, cap: int
) -> Reply:
    """Return the reply of a call: the body of the answer as it came, or the error.

    Args:
        request: The request.
        envelope: The envelope of its call.
        outcome: The outcome of the call.
        zone: The time zone of budgets.
        cap: The most output tokens of an attempt, for all its answers together.

    """
    last = _told(outcome)
    headers = _headers(request, envelope, outcome, cap)
    if last is None or last.trace is None:
        reason = (last and last.failure) or outcome.error or _no_reason()
        is_unsent = not any(one.sent for one in outcome.attempts)
        failure = errors.failure_of(reason)
        if is_unsent and reason.category == FailureKind.EXPIRED:
            failure = errors.UNSENT_IN_TIME
        body = errors.error_body(request.api, failure, errors.failure_message(reason, zone))
        may_be_repeated = is_unsent and failure in {errors.SHUTTING_DOWN, errors.BUDGET_BUSY}
        if may_be_repeated and failure == errors.BUDGET_BUSY:
            headers["retry-after"] = str(errors.RETRY_AFTER_S)
        return Reply(body, headers, failure, may_be_repeated=may_be_repeated)
    # An answer that was asked again was rejected, whatever ended the call.
    is_last = last is outcome.attempts[-1]
    verdict = _VERDICTS.get(last.trace.verdict, "rejected") if is_last else "rejected"
    return Reply(last.text.encode(), {**headers, "x-agentic-verdict": verdict})


def _told(outcome: StructuredOutcome) -> Attempt | None:
    """Return the attempt that the client is told of: the newest one with an answer, otherwise the last one."""
    if not outcome.attempts or outcome.attempts[-1].trace is not None:
        return outcome.attempts[-1] if outcome.attempts else None
    # A rejected answer is paid, and goes to the client if asking again has failed.
    answered = (one for one in reversed(outcome.attempts) if one.trace is not None and one.text)
    return next(answered, outcome.attempts[-1])


def _no_reason() -> FailureReason:
    return FailureReason(category=FailureKind.INTERNAL_ERROR, description="the call ended without an answer")


def _headers(
    request: ClientRequest, envelope: LLMEnvelope, outcome: StructuredOutcome, most: int
) -> dict[str, str]:
    """Return the headers about a call. Their cost is that of all its attempts."""
    headers = {
        "x-agentic-trace-id": envelope.trace_id,
        "x-agentic-cost-nusd": str(outcome.usage.cost_nusd),
        "x-agentic-attempts": str(len(outcome.attempts)),
    }
    if (last := _told(outcome)) is not None:
        is_recorded = last.first_cost_nusd is not None
        headers |= {
            "x-agentic-interaction-id": last.interaction_id,
            "x-agentic-served-from": "recorded" if is_recorded else "live",
            # The vendors' libraries show it as the id of the request.
            "request-id" if request.api == "messages" else "x-request-id": last.interaction_id,
        }
    cap = most // request.choices
    return headers if request.cap == cap else {**headers, "x-agentic-output-cap": str(cap)}


def answer_events(request: ClientRequest, body: bytes) -> bytes:
    """Return a whole answer as the events of a stream.

    Raises:
        ValueError: If the answer has another form than its API gives it.
        KeyError: The same.
        TypeError: The same.
        AttributeError: The same.
        RecursionError: If it is nested too deeply.

    """
    answer = decoded_answer(body)
    match request.api:
        case "chat_completions":
            return chat_completions.chat_events(answer, include_usage=request.include_usage)
        case "responses":
            return responses.response_events(answer)
        case "messages":
            return messages.message_events(answer)


def error_event(request: ClientRequest, body: bytes) -> bytes:
    """Return an error as an event of a stream that has begun."""
    return (b"event: error\n" if request.api == "messages" else b"") + b"data: %b\n\n" % body


TABLES: Final = {table.api: table for table in (chat_completions.TABLE, responses.TABLE, messages.TABLE)}
