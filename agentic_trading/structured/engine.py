"""Prepare a request, read its answer, and choose the step after a rejected answer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, Protocol

import orjson
from pydantic import BaseModel, ValidationError

from agentic_trading.canonical import sha256_hex
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope, ResponseFormat
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse, ToolDefinition, Transport
from agentic_trading.llm.result import Stage, Violation
from agentic_trading.llm.verbatim import VerbatimRequest, verbatim_problems
from agentic_trading.logger import get_logger
from agentic_trading.structured import prompts, verbatim
from agentic_trading.structured.decode import keys_in
from agentic_trading.structured.outcome import (
    Accepted,
    ParserException,
    Rejected,
    UnreadableError,
    may_be_asked_again,
    to_failure,
)
from agentic_trading.structured.patch import is_protected
from agentic_trading.structured.pipeline import RawAnswer, parse_answer, usable_schema
from agentic_trading.structured.pydantic_schema import (
    SchemaLike,
    SemanticCheck,
    instance_of,
    schema_of,
    violation_at,
)
from agentic_trading.structured.strict_schema import choice_for, unenforced_transport

log = get_logger()

_PARSER_OF: dict[Transport, str] = {
    "native_schema": "StructuredLogProbsParser",
    "strict_tool": "StructuredLogProbsParser",
    "json_mode": "InstructorParser",
    "prompted": "InstructorParser",
    "text": "InstructorParser",
    "verbatim": "InstructorParser",
}
_BEFORE_DECODING = frozenset({
    Stage.REFUSAL,
    Stage.TRUNCATED,
    Stage.RESPONSE_EMPTY,
    Stage.TRANSPORT,
    Stage.SCHEMA_INVALID,
})


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked envelope with its first request.

    Attributes:
        parser: Reads every answer of the call.
        capability: The capabilities of the model.
        request: The first request.

    """

    parser: "OutputParser"
    capability: Capability
    request: ModelRequest

    def read(
        self, response: ModelResponse, request: ModelRequest, *, check: SemanticCheck | None = None
    ) -> Accepted | Rejected:
        """Return the accepted object of the answer to `request`, or the rejection."""
        return self.parser.read(response, request, check=check)

    def reask(self, request: ModelRequest, rejected: Rejected, *, attempt: int) -> ModelRequest:
        """Return `request` with the last answer and its errors."""
        return prompts.reask_request(request, rejected, attempt=attempt)

    def raise_cap(self, request: ModelRequest, *, attempt: int) -> ModelRequest:
        """Return `request` with a higher output cap, limited by the model."""
        return prompts.raised_cap_request(request, attempt=attempt, limit=self.capability.max_output_tokens)

    def move_schema_to_prompt(self, request: ModelRequest, *, attempt: int) -> ModelRequest:
        """Return `request` with its schema in the prompt.

        Use it if the provider refuses to enforce the schema.
        """
        prompted = prompts.prompted_request(request, self.capability, attempt=attempt)
        return prompts.offered(prompted, request.tools) if request.tools else prompted


def prepare(
    envelope: LLMEnvelope,
    capability: Capability,
    *,
    enforced: bool = True,
    tools: Mapping[str, ToolDefinition] = MappingProxyType({}),
) -> Prepared | FailureReason:
    """Return the parser and the first request of an envelope, or a reason for failure.

    The schema is compiled and checked here, before any money is spent.

    Args:
        envelope: The call.
        capability: The capabilities of its model.
        enforced: False puts the schema into the prompt, even if the model can enforce it. Use it after the
            provider has refused the schema.
        tools: The tools that the envelope may name.

    """
    is_verbatim = envelope.response_format is ResponseFormat.VERBATIM
    # Checked before the body is read, because an envelope from a bus is not trusted.
    if is_verbatim and (problems := [*verbatim_problems(envelope.context)]):
        return FailureReason(category=FailureKind.INVALID_REQUEST, description="; ".join(problems))
    problem = schema_problem(
        envelope.expected_output_schema, envelope.output_policy, schema_json=envelope.output_schema_json
    )
    if problem is not None:
        return problem
    named = prompts.tools_of(envelope, capability, tools) if envelope.tools_allowed else ()
    if isinstance(named, FailureReason):
        return named
    parser = select(capability, envelope)
    if enforced:
        request = parser.request(envelope, capability, attempt=1, answer=1)
    else:
        request = prompts.request_over("prompted", envelope, capability, attempt=1, answer=1)
    return Prepared(parser, capability, prompts.offered(request, named) if named else request)


def select(capability: Capability, envelope: LLMEnvelope) -> "OutputParser":
    """Return the parser of a model: native if the model accepts a schema.

    Otherwise it is the one that puts the schema into the prompt. The log has the transport of the envelope,
    and the reason for skipping each better transport.
    """
    enforces = capability.native_schema or capability.strict_tool
    parser = _NATIVE if enforces else _PROMPTED
    choice = choice_for(envelope, capability)
    log.debug(
        "Selected StructuredLogProbsParser" if enforces else "Selected InstructorParser",
        model=capability.model,
        envelope_id=envelope.envelope_id,
        transport=choice.transport,
        passed_over=choice.passed_over,
    )
    return parser


def read(
    response: ModelResponse,
    schema: SchemaLike,
    policy: OutputPolicy,
    *,
    check: SemanticCheck | None = None,
    max_tokens: int | None = None,
    parser: str = "",
    model: str = "",
    transport: Transport = "prompted",
    schema_json: bytes | None = None,
    shown: str = "",
    tool: str = "",
    needs_stop_reason: bool = False,
    judged: str | None = None,
) -> Accepted | Rejected:
    """Return the accepted object of an answer, or the rejection. Never raises.

    `Accepted.instance` has exact decimals, and all protected properties of the answer.

    Args:
        response: The answer of the provider.
        schema: A JSON Schema or a pydantic model. The validators of the model run last.
        policy: How strictly the answer is read, and which changes are allowed.
        check: Runs on the accepted JSON text.
        max_tokens: The output cap of the request. An answer that reaches it counts as truncated.
        parser: The parser's name on record. Default: the parser of the transport.
        model: The model's name on record. Default: the model of the response.
        transport: How the answer was requested. The object of a plain `text` is empty.
        schema_json: The schema as canonical JSON, to save serializing it again.
        shown: The user message of the request. A copy of its object next to other text is not an answer.
        tool: The tool whose call is read. A call of another tool is rejected.
        needs_stop_reason: Reject an answer without a stop reason, even if it ends with its object.
        judged: With `verbatim`, the part of the answer that must fit the schema. None without a check.

    """
    model_check = None if isinstance(schema, Mapping) else PydanticCheck(schema, check, policy)
    answer = RawAnswer(
        response=response,
        schema=schema if isinstance(schema, Mapping) else {},
        schema_json=schema_json,
        policy=policy,
        check=model_check or check,
        max_tokens=max_tokens,
        parser=parser or _PARSER_OF[transport],
        model=model or response.model,
        transport=transport,
        shown=shown,
        tool=tool,
        needs_stop_reason=needs_stop_reason or policy.require_sentinel,
        judged=judged,
    )
    try:
        if model_check is None:
            return parse_answer(answer)
        accepted = parse_answer(answer._replace(schema=schema_of(model_check.model)))
    except ParserException as e:
        return _rejected(answer, e)
    except UnreadableError as e:  # a model that has no JSON Schema
        return _rejected(answer, ParserException(answer.parser, answer.model, e.stage, "", e))
    return replace(accepted, instance=model_check.instances.get(accepted.text))


def read_answer(
    response: ModelResponse, request: ModelRequest, *, parser: str, check: SemanticCheck | None = None
) -> Accepted | Rejected:
    """Read the answer to `request` by its envelope, or a tool call by its tool."""
    envelope = request.envelope
    tool = None
    if response.tool_called:
        tool = next((tool for tool in request.tools if tool.name == response.tool_called), None)
    outcome = read(
        response,
        tool.parameters if tool else envelope.expected_output_schema,
        prompts.CALL_POLICY if tool else envelope.output_policy,
        check=None if tool else check,
        max_tokens=request.max_tokens,
        parser=parser,
        model=envelope.model,
        transport="strict_tool" if tool else request.transport,
        schema_json=tool.parameters_json if tool else envelope.output_schema_json,
        shown="" if tool else request.user,
        tool=tool.name if tool else "",
        needs_stop_reason=envelope.workflow is EnvelopeWorkflow.EXECUTION,
        judged=_judged(response, request),
    )
    if isinstance(outcome, Accepted):
        log.debug("answer_accepted", parser_type=parser, model=envelope.model)
    return outcome


def _judged(response: ModelResponse, request: ModelRequest) -> str | None:
    """Return the part of a passed-on answer that the schema of its envelope applies to."""
    if request.verbatim is None or not request.envelope.expected_output_schema:
        return None
    try:
        asked = VerbatimRequest.of(request.envelope.context)
        form = verbatim.wanted_form(asked.api, asked.fields)
        return None if form is None else verbatim.judged_text(asked, response.text, form)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        # The answer is paid for. It is passed on unjudged, because an error here would lose it.
        log.warning("form_unreadable", model=request.envelope.model, why=f"{e!r:.200}")
        return None


def schema_problem(
    schema: Mapping[str, Any], policy: OutputPolicy, *, schema_json: bytes | None = None
) -> FailureReason | None:
    """Return why no answer could fit the schema, or None if an answer can."""
    try:
        usable_schema(schema, schema_json, policy)
    except UnreadableError as e:
        failure = to_failure(ParserException("schema_problem", "", e.stage, "", e))
        return failure.model_copy(update={"description": str(e), "technical_details": ""})
    return None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not ask for another answer."""

    reason: Literal["terminal", "same_errors", "answers_used_up"]


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Ask again with the errors of the answer. See `prompts.reask_request`."""


@dataclass(frozen=True, slots=True)
class RaiseCap:
    """Ask the same again with a higher output cap. See `prompts.raised_cap_request`."""


NextStep = GiveUp | AskAgain | RaiseCap
"""The step after a rejected answer."""


def next_step(
    outcome: Rejected,
    previous: Rejected | None,
    policy: OutputPolicy,
    *,
    answers_read: int,
    cap_raised: bool,
) -> NextStep:
    """Return the step after a rejected answer.

    A refusal, a second truncation, an invalid schema, and the same errors twice in a row end the call.

    Args:
        outcome: The rejected answer.
        previous: The rejected answer before it, if there was one.
        policy: The policy of the envelope.
        answers_read: The number of answers read so far, including this one.
        cap_raised: Whether the output cap was raised before.

    """
    verdict = outcome.trace.verdict
    if verdict is Stage.TRUNCATED and policy.on_truncated == "raise_cap_once" and not cap_raised:
        return RaiseCap()
    if not may_be_asked_again(verdict):
        return GiveUp("terminal")
    if previous is not None and previous.trace.verdict is verdict and previous.errors == outcome.errors:
        return GiveUp("same_errors")
    if answers_read >= policy.answers_read:
        return GiveUp("answers_used_up")
    return AskAgain()


class OutputParser(Protocol):
    """Turns an envelope into a request, and its answer into an object.

    Parsers do no I/O and do not raise for any answer. Equal inputs give equal requests and outcomes.
    """

    @property
    def name(self) -> str:
        """The name of this parser in records and failures."""
        ...

    def request(
        self, envelope: LLMEnvelope, capability: Capability, *, attempt: int, answer: int
    ) -> ModelRequest:
        """Return the request of `envelope`. `attempt` and `answer` count from 1."""
        ...

    def read(
        self, response: ModelResponse, request: ModelRequest, *, check: SemanticCheck | None = None
    ) -> Accepted | Rejected:
        """Return the accepted object of the answer to `request`, or the rejection."""
        ...


@dataclass(frozen=True, slots=True)
class StructuredLogProbsParser:
    """Asks with a schema that the provider enforces, and checks the original one too.

    The provider enforces the schema of the answer, or of a tool whose input is the answer. A schema that
    cannot be enforced, or is too large for the provider, goes into the prompt: see the transport of the
    request. An object that the provider has parsed is used directly. Logprobs go into the trace.
    """

    name: str = "StructuredLogProbsParser"

    def request(
        self, envelope: LLMEnvelope, capability: Capability, *, attempt: int, answer: int
    ) -> ModelRequest:
        """Return the request of `envelope`."""
        return prompts.first_request(envelope, capability, attempt=attempt, answer=answer)

    def read(
        self, response: ModelResponse, request: ModelRequest, *, check: SemanticCheck | None = None
    ) -> Accepted | Rejected:
        """Return the accepted object of the answer to `request`, or the rejection."""
        return read_answer(response, request, parser=self.name, check=check)


@dataclass(frozen=True, slots=True)
class InstructorParser:
    """Puts the schema into the prompt, and reads JSON from the text.

    It uses the JSON mode of the model if there is one.
    """

    name: str = "InstructorParser"

    def request(
        self, envelope: LLMEnvelope, capability: Capability, *, attempt: int, answer: int
    ) -> ModelRequest:
        """Return the request of `envelope`."""
        transport = unenforced_transport(envelope, capability)
        return prompts.request_over(transport, envelope, capability, attempt=attempt, answer=answer)

    def read(
        self, response: ModelResponse, request: ModelRequest, *, check: SemanticCheck | None = None
    ) -> Accepted | Rejected:
        """Return the accepted object of the answer to `request`, or the rejection."""
        return read_answer(response, request, parser=self.name, check=check)


_NATIVE = StructuredLogProbsParser()
_PROMPTED = InstructorParser()


class PydanticCheck:
    """The validators of a model as a check, followed by the check of the caller.

    `instances` has the accepted instances by their JSON text.
    """

    def __init__(self, model: type[BaseModel], then: SemanticCheck | None, policy: OutputPolicy) -> None:
        self.model = model
        self.instances: dict[str, BaseModel] = {}
        self._then = then
        self._policy = policy

    def __call__(self, text: str, /) -> Sequence[Violation]:
        """Return the violations of `text`."""
        instance = self.instances[text] = instance_of(self.model, text)
        if lost := self._lost(text, instance):
            return lost
        return self._then(text) if self._then else ()

    def _lost(self, text: str, instance: BaseModel) -> list[Violation]:
        """Return the protected properties that `instance` lacks."""
        if not any(is_protected(key, self._policy) for key in keys_in(orjson.loads(text))):
            return []
        # Validate again with extra="forbid", because pydantic would drop unknown properties without an error.
        try:
            instance_of(self.model, text, extra="forbid")
        except ValidationError as e:
            unknown = [
                error["loc"] for error in e.errors(include_url=False) if error["type"] == "extra_forbidden"
            ]
        else:
            return []
        kept = set(keys_in(instance.model_dump()))  # a nested model may allow extra properties
        return [
            violation_at(place, "protected", f"is protected, and {self.model.__name__} has no such property")
            for place in unknown
            if is_protected(str(place[-1]), self._policy) and place[-1] not in kept
        ]


def _rejected(answer: RawAnswer, e: ParserException) -> Rejected:
    raw_output = answer.raw_output
    log.info(
        "answer_rejected",
        parser_type=e.parser,
        stage=e.stage,
        model=e.model,
        rules=dict(Counter(violation.keyword for violation in e.errors)),
        content_chars=len(raw_output),
        content_sha256=sha256_hex(raw_output.encode("utf-8", "surrogatepass")),
    )
    trace = answer.trace(
        e.stage,
        decode="none" if e.stage in _BEFORE_DECODING else e.level or answer.policy.decode,
        errors=e.errors,
        **e.changes,
        semantic_check=answer.check_name if e.stage is Stage.SEMANTIC else "",
    )
    return Rejected(to_failure(e), e.errors, raw_output, trace)
