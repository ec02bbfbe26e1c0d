"""From a model's answer to code, or to what is wrong with it: pure, and nothing is run."""

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
    """The code of a valid answer with its parameters and reasoning, or what is wrong with the answer."""

    success: bool
    code: str | None = None
    params: StrategyParams | None = None
    errors: list[ValidationErrorDetail] = field(default_factory=list)
    reasoning: str = ""

    def get_feedback_prompt(self) -> str:
        """Return what is wrong as a text that asks again; an empty one where nothing is."""
        return StructuredErrorFeedback().format_errors(self.errors)


class TemplateCodeGenerator:
    """Reads an answer, holds it against what is offered, and has a template write the code."""

    def __init__(self, template: BaseTemplate, offered: AvailableParams = EVERYTHING) -> None:
        """Take the template of the family that is asked for, and compile it; it blocks.

        Raises `NotOfferedError` where the data cannot serve the family, and what `BaseTemplate.compile` does.
        """
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
        """Return the code for an answer, which may stand in a fence or in prose, with its reasoning in front or in it.

        An answer that cannot be read or breaks a rule is a result without success. Raises `TemplateError` for a template
        that cannot be rendered: that is not the answer's fault.
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
        """Return the code for the outcome of a call; raises `GenerationFailedError` for one without an accepted object.

        The reasoning is that of the object, else what stands in front of it in `raw_output`, the text of the last attempt.
        The error has what is wrong with the last answer that was read, and the interactions of all attempts.
        """
        if outcome.ok:
            return self.generate(_with_reasoning(outcome.json or {}, reasoning_in(raw_output)))
        read = [attempt.trace for attempt in outcome.attempts if attempt.trace and attempt.trace.errors]
        errors = self._details(read[-1].errors, read[-1].verdict) if read else ()
        attempts = [attempt.interaction_id for attempt in outcome.attempts]
        raise GenerationFailedError(errors, attempts, outcome.error)

    def _extract_json(self, raw_output: str) -> str:
        """Return the one JSON document in a text; raises `UnreadableError` for none, and for several."""
        found = only(json_candidates(raw_output, lossless=True))
        return _with_reasoning(found.value, _reasoning_before(raw_output, found.start))

    def _validate_params(self, json_str: str) -> StrategyParamRequest:
        """Return what a document says; raises `UnreadableError` for what breaks the schema, or a rule between parameters."""
        answer = exact_value(json_str.encode())
        if broken := find_violations(answer, self._compiled):
            raise UnreadableError(Stage.SCHEMA_VALIDATION, broken)
        if broken := disagreements(answer, self.schema):
            raise UnreadableError(Stage.SEMANTIC, broken)
        params = {"strategy_type": self.template.family, **answer["params"]}  # which the question has settled
        return StrategyParamRequest.model_validate_json(exact_bytes({**answer, "params": params}))

    def _inject_params(self, params: StrategyParams) -> str:
        """Return the code of valid parameters."""
        return self.template.generate_code(params, data_sha256=self._data_sha256)

    def _details(self, violations: Sequence[Violation], stage: Stage) -> tuple[ValidationErrorDetail, ...]:
        return error_details(violations, stage, defaults=self._defaults)


class TemplateParameterGenerator:
    """Asks for parameters in a prompt of text alone, for models that are called without an envelope."""

    def __init__(self, template: BaseTemplate, offered: AvailableParams = EVERYTHING) -> None:
        """Take what `TemplateCodeGenerator` takes."""
        self._offered = offered
        self._generator = TemplateCodeGenerator(template, offered)

    def _build_prompt(self, tried: Iterable[Mapping[str, Any]] = ()) -> str:
        """Return instructions, the form of the answer, what the data withholds, and the sets that were tried, as JSON."""
        form = render_schema(canonical_bytes(self._generator.schema), sentinel=False)
        evidence = {"withheld": [*self._offered.withheld], "tried": [*tried]}
        return (
            f"{load_prompt('agentic_trading.desk.planning', PROMPT).text}\n"
            f"Answer with one JSON object in this form, and nothing else:\n{form}\n\n"
            f"```json\n{canonical_bytes(evidence).decode()}\n```\n"
        )

    def generate_parameters(self, llm_output: str) -> StrategyParams:
        """Return the parameters of an answer; raises `GenerationFailedError` with what is wrong with it."""
        result = self._generator.generate(llm_output)
        if result.params is None:
            raise GenerationFailedError(result.errors)
        return result.params


def reasoning_in(raw_output: str) -> str:
    """Return the reasoning that stands in front of the first object of a text, after `REASONING:`; else an empty text."""
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
    """Return a document as JSON, with the reasoning in it where it has none of its own."""
    if reasoning and isinstance(value, dict) and "reasoning" not in value:
        value = {"reasoning": reasoning, **value}
    return exact_bytes(value).decode()
