"""Typed answers: an instance of your pydantic model, or a reason for failure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from pydantic import BaseModel
from typing_extensions import override

from agentic_trading.client.outcome import StructuredOutcome
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import DEFAULT_TENANT, EnvelopeWorkflow, LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import EnvelopeValidationError, FailureReason
from agentic_trading.llm.limits import LLMBudget
from agentic_trading.structured.engine import PydanticCheck
from agentic_trading.structured.outcome import UnreadableError
from agentic_trading.structured.pydantic_schema import SemanticCheck, schema_of

M = TypeVar("M", bound=BaseModel)
M_co = TypeVar("M_co", bound=BaseModel, covariant=True)

NO_EVIDENCE: Final[Mapping[str, Any]] = MappingProxyType({})

_PRESETS: Final[Mapping[EnvelopeWorkflow, Callable[[EnvelopeBuilder], EnvelopeBuilder]]] = {
    EnvelopeWorkflow.ANALYSIS: EnvelopeBuilder.for_analysis,
    EnvelopeWorkflow.PLANNING: EnvelopeBuilder.for_planning,
    EnvelopeWorkflow.EXECUTION: EnvelopeBuilder.for_execution,
    EnvelopeWorkflow.GENERAL: EnvelopeBuilder.for_general,
}


@dataclass(frozen=True, slots=True, repr=False)
class Answer(Generic[M_co]):
    """The result of `decide`. It is true only if you may act on it.

    Attributes:
        output: The instance of your model, or None if the call failed.
        failure: The reason for the failure, or None.
        outcome: All attempts, their usage and cost. `outcome.json_text` has the digits as the model wrote
            them.

    """

    output: M_co | None
    failure: FailureReason | None
    outcome: StructuredOutcome

    def __bool__(self) -> bool:
        """Return whether the call succeeded and its output passed every check."""
        return self.output is not None and self.failure is None and self.outcome.ok

    @override
    def __repr__(self) -> str:
        """Return the output or the failure in one line, with the number of attempts and their cost."""
        failure = self.failure
        result = repr(self.output) if failure is None else f"{failure.category}: {failure.description}"
        attempts = len(self.outcome.attempts)
        result = result if len(result) <= _SHOWN_CHARS else f"{result[: _SHOWN_CHARS - 1]}…"
        return f"Answer({result}, attempts={attempts}, cost_nusd={self.outcome.usage.cost_nusd})"


class AsksStructured(Protocol):
    """A gateway that returns the outcome of an envelope."""

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Run a call and return its outcome: see `GatewayClient.ask_structured`."""
        ...


class TypedAnswers:
    """Adds the method `decide` to a gateway that has `ask_structured`."""

    __slots__ = ()

    async def decide(
        self: AsksStructured,
        instructions: str,
        *,
        output: type[M],
        model: str,
        evidence: Mapping[str, Any] = NO_EVIDENCE,
        workflow: EnvelopeWorkflow = EnvelopeWorkflow.ANALYSIS,
        as_of: datetime | None = None,
        budget: LLMBudget | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Answer[M]:
        """Ask a model for an instance of a pydantic class.

        The validators of the class check the answer. Workers of the same process run them and ask again after
        a rejected answer. Workers of other processes run them if they have a check for the `$id` of the
        class. Otherwise only the client runs them: a rejected answer is then a `parsing_error`, without a
        second call.

        Args:
            instructions: The task.
            output: The pydantic model class of the answer.
            model: The provider and the model, as `provider/model`.
            evidence: The content of each piece of evidence, by its source.
            workflow: The preset of limits and rules.
            as_of: The time of the question. Evidence that became available later is refused.
            budget: Limits of this call. Fields that are not given keep the value of the preset.
            tenant: The tenant that pays.

        Returns:
            An `Answer`. It is true only if you may act on it.

        Raises:
            EnvelopeValidationError: If an argument is invalid.
            BusError: If the call cannot be published.

        Example:
            answer = await gateway.decide(
                "Judge the trend from the evidence.",
                output=Trend,
                model="anthropic/claude-sonnet-5-5",
                evidence={"indicators": {"rsi_14": 62.3}},
            )
            if answer:
                print(answer.output.direction)

        """
        envelope = typed_envelope(
            instructions, output, model, evidence, workflow, as_of=as_of, budget=budget, tenant=tenant
        )
        return await ask_typed(self, envelope, output)


async def ask_typed(gateway: AsksStructured, envelope: LLMEnvelope, output: type[M]) -> Answer[M]:
    """Run a call, and return the instance of its output class.

    The envelope must have the schema of `output`.

    Raises:
        BusError: If the call cannot be published.

    """
    check = PydanticCheck(output, None, envelope.output_policy)
    outcome = await gateway.ask_structured(envelope, check=check)
    if not outcome.ok:
        return Answer(None, outcome.error, outcome)
    # Always present, because the client has run the check on this text.
    instance = cast("M", check.instances[outcome.json_text])
    return Answer(instance, None, outcome)


def typed_envelope(
    instructions: str,
    output: type[BaseModel],
    model: str,
    evidence: Mapping[str, Any],
    workflow: EnvelopeWorkflow,
    *,
    as_of: datetime | None,
    budget: LLMBudget | None,
    tenant: str,
) -> LLMEnvelope:
    """Return the envelope of a typed question.

    Raises:
        EnvelopeValidationError: If an argument is invalid.

    """
    provider, _, name = model.partition("/")
    if not (provider and name):
        allowed = "PROVIDER/MODEL, for example anthropic/claude-sonnet-5-5"
        raise EnvelopeValidationError([f"model: {model!r:.80} has no provider. Use {allowed}"])
    builder = typed_builder(EnvelopeBuilder(), instructions, output, workflow)
    builder.with_tenant(tenant).with_provider(LLMProvider(provider), name)
    for source, content in evidence.items():
        builder.add_evidence(source, content)
    if as_of is not None:
        builder.with_as_of(as_of)
    if budget is not None:
        builder.with_budget(**budget.model_dump(exclude_unset=True))
    return builder.build()


def typed_builder(
    builder: EnvelopeBuilder, instructions: str, output: type[BaseModel], workflow: EnvelopeWorkflow
) -> EnvelopeBuilder:
    """Set the preset, the instructions and the schema of a typed question.

    Raises:
        EnvelopeValidationError: If `output` is no pydantic model class with a schema.

    """
    builder = _PRESETS[EnvelopeWorkflow(workflow)](builder)
    return builder.with_instructions(instructions).with_output_schema(_schema(output))


def _schema(output: object) -> Mapping[str, Any]:
    if not (isinstance(output, type) and issubclass(output, BaseModel)):
        raise EnvelopeValidationError([f"output: {output!r:.80} is not a pydantic model class"])
    try:
        return schema_of(output)
    except UnreadableError as e:
        raise EnvelopeValidationError([f"output: {e}"]) from e


_SHOWN_CHARS: Final = 200
