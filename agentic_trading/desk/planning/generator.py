"""From a model's answer to code, or to the errors of the answer. No code is run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agentic_trading.canonical import canonical_bytes, exact_bytes, exact_value
from agentic_trading.client.outcome import StructuredOutcome
from agentic_trading.desk.planning.errors import GenerationFailedError
from agentic_trading.desk.planning.params import StrategyParamRequest, StrategyParams
from agentic_trading.desk.planning.schema import EVERYTHING, AvailableParams, answer_schema, disagreements
from agentic_trading.desk.planning.template import BaseTemplate
from agentic_trading.desk.prompts import load_prompt
from agentic_trading.llm.result import Stage, Violation
from agentic_trading.structured.extract import json_candidates, only
from agentic_trading.structured.feedback import (
    StructuredErrorFeedback,
    ValidationErrorDetail,
    error_details,
)
from agentic_trading.structured.outcome import UnreadableError
from agentic_trading.structured.render import render_schema
from agentic_trading.structured.validation import compile_schema, find_violations, schema_bytes

PROMPT: Final = "strategy_params.v1"

_SAID: Final = "REASONING:"


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The code of a valid answer with its parameters, or the errors of the answer."""

    success: bool
    code: str | None = None
    params: StrategyParams | None = None
    errors: list[ValidationErrorDetail] = field(default_factory=list)
    reasoning: str = ""

    def get_feedback_prompt(self) -> str:
        """Return the errors as a text that asks the model again. Empty without errors."""
        return StructuredErrorFeedback().format_errors(self.errors)


class TemplateCodeGenerator:
    """A generator that reads an answer, validates it, and renders the code.

    The constructor compiles the template, and blocks.

    Args:
        template: The template of the family.
        offered: The parameters that the data can serve.

    Raises:
        NotOfferedError: If the data cannot serve the family.
        TemplateError: If the template's text has an error.

    """

    def __init__(self, template: BaseTemplate, offered: AvailableParams = EVERYTHING) -> None:
        template.compile()
        self.template = template
        self.schema = answer_schema(offered, (template.family,))
        self._compiled = compile_schema(schema_bytes(self.schema))
        self._data_sha256 = offered.facts.sha256
        grid = offered.grids[template.family]
        self._defaults = {
            f"params.{name}": default if default in grid[name] else grid[name][0]
            for name, default in template.DEFAULTS.items()
        }

    def generate(self, llm_output: str) -> GenerationResult:
        """Return the code of an answer, or its errors.

        The answer may be JSON in a fence or within prose. Its reasoning may be in the object, or in front of
        it.

        Returns:
            The result. `success` is False if the answer cannot be read or breaks a rule.

        Raises:
            TemplateError: If the template cannot be rendered. This is not the fault of the answer.

        """
        try:
            request = self._validate_params(self._extract_json(llm_output))
        except UnreadableError as e:
            return GenerationResult(success=False, errors=[*self._details(e.violations, e.stage)])
        return GenerationResult(
            success=True,
            code=self._inject_params(request.params),
            params=request.params,
            reasoning=request.reasoning,
        )

    def generate_from(self, outcome: StructuredOutcome, raw_output: str = "") -> GenerationResult:
        """Return the code for the outcome of a call.

        Args:
            outcome: The outcome.
            raw_output: The text of the last attempt. It is searched for reasoning if the object has none.

        Raises:
            GenerationFailedError: If no answer was accepted. It has the errors of the last answer that could
                be read, and the interactions of all attempts.
            TemplateError: If the template cannot be rendered.

        """
        if outcome.ok:
            return self.generate(_with_reasoning(outcome.json or {}, reasoning_in(raw_output)))
        read = [attempt.trace for attempt in outcome.attempts if attempt.trace and attempt.trace.errors]
        errors = self._details(read[-1].errors, read[-1].verdict) if read else ()
        attempts = [attempt.interaction_id for attempt in outcome.attempts]
        raise GenerationFailedError(errors, attempts, outcome.error)

    def _extract_json(self, raw_output: str) -> str:
        """Return the only JSON document of a text, or raise `UnreadableError`."""
        found = only(json_candidates(raw_output, lossless=True))
        return _with_reasoning(found.value, _reasoning_before(raw_output, found.start))

    def _validate_params(self, json_str: str) -> StrategyParamRequest:
        """Return a validated document, or raise `UnreadableError`."""
        answer = exact_value(json_str.encode())
        if broken := find_violations(answer, self._compiled):
            raise UnreadableError(Stage.SCHEMA_VALIDATION, broken)
        if broken := disagreements(answer, self.schema):
            raise UnreadableError(Stage.SEMANTIC, broken)
        # An answer may leave the family out, because the question is about a single family.
        params = {"strategy_type": self.template.family, **answer["params"]}
        return StrategyParamRequest.model_validate_json(exact_bytes({**answer, "params": params}))

    def _inject_params(self, params: StrategyParams) -> str:
        return self.template.generate_code(params, data_sha256=self._data_sha256)

    def _details(self, violations: Sequence[Violation], stage: Stage) -> tuple[ValidationErrorDetail, ...]:
        return error_details(violations, stage, defaults=self._defaults)


class TemplateParameterGenerator:
    """A reader of parameters from answers to prompts of text alone.

    Use it for models that are called without an envelope.

    Args:
        template: The template of the family.
        offered: The parameters that the data can serve.

    Raises:
        NotOfferedError: If the data cannot serve the family.
        TemplateError: If the template's text has an error.

    """

    def __init__(self, template: BaseTemplate, offered: AvailableParams = EVERYTHING) -> None:
        self._offered = offered
        self._generator = TemplateCodeGenerator(template, offered)

    def _build_prompt(self, tried: Iterable[Mapping[str, Any]] = ()) -> str:
        """Return a prompt with instructions, answer form, withheld values and tried sets."""
        form = render_schema(canonical_bytes(self._generator.schema), sentinel=False)
        evidence = {"withheld": [*self._offered.withheld], "tried": [*tried]}
        return (
            f"{load_prompt('agentic_trading.desk.planning', PROMPT).text}\n"
            f"Answer with one JSON object in this form, and nothing else:\n{form}\n\n"
            f"```json\n{canonical_bytes(evidence).decode()}\n```\n"
        )

    def generate_parameters(self, llm_output: str) -> StrategyParams:
        """Return the parameters of an answer.

        Raises:
            GenerationFailedError: If the answer is not a valid set. It has the errors.

        """
        result = self._generator.generate(llm_output)
        if result.params is None:
            raise GenerationFailedError(result.errors)
        return result.params


def reasoning_in(raw_output: str) -> str:
    """Return the reasoning in front of a text's first object, or an empty text.

    It begins with `REASONING:`.
    """
    try:
        start = json_candidates(raw_output, lossless=True)[0].start
    except UnreadableError:
        return ""
    return _reasoning_before(raw_output, start)


def _reasoning_before(text: str, start: int) -> str:
    before = text[:start].strip()
    if not before.startswith(_SAID):
        return ""
    for mark in ("```json", "```", "JSON:"):
        before = before.removesuffix(mark).rstrip()
    return before.removeprefix(_SAID).strip()


def _with_reasoning(value: Any, reasoning: str) -> str:
    """Return a document as JSON, with the reasoning added if the document has none."""
    if reasoning and isinstance(value, dict) and "reasoning" not in value:
        value = {"reasoning": reasoning, **value}
    return exact_bytes(value).decode()
