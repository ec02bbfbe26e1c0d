"""The outcome of one attempt: what came out, what it cost, how it was read."""

import operator
from collections.abc import Mapping
from datetime import UTC, date
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import orjson
from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, model_validator
from pydantic_core import to_json

from agentic_trading.canonical import Fragment, exact_bytes, exact_value, sha256_hex
from agentic_trading.clock import SystemClock
from agentic_trading.ids import random_id
from agentic_trading.llm import fields as field_types
from agentic_trading.llm.envelope import DeterminismLevel, LLMProvider
from agentic_trading.llm.errors import (
    FailureKind,
    FailureReason,
    LLMBudgetExhaustedError,
    LLMCallError,
    LLMResponseValidationError,
)
from agentic_trading.llm.limits import NANO, UnlessNone, nusd_from_usd


class Stage(StrEnum):
    """Where the reading of an answer ended."""

    REFUSAL = "refusal"
    TRUNCATED = "truncated"
    RESPONSE_EMPTY = "response_empty"
    JSON_PARSE = "json_parse"
    AMBIGUOUS = "ambiguous"
    SCHEMA_VALIDATION = "schema_validation"
    SEMANTIC = "semantic"
    TRANSPORT = "transport"
    SCHEMA_INVALID = "schema_invalid"
    DONE = "done"


class Violation(BaseModel, frozen=True, extra="allow"):
    """One rule that a value breaks.

    `path` is a JSON path (`$.legs[0].qty`), `allowed` the values or bounds that would pass,
    `suggestion` the nearest of them: shown to the model, never put into the data.
    """

    path: field_types.Text
    keyword: str
    message: field_types.Text
    expected: field_types.Legible = None
    actual: field_types.Legible = None
    allowed: field_types.Legible = None
    suggestion: field_types.Legible = None


class Fix(BaseModel, frozen=True, extra="allow"):
    """One change made while reading; `where` is a path or an offset in the text."""

    kind: str
    where: field_types.Text
    before: field_types.Text = ""
    after: field_types.Text = ""


class AttemptTrace(BaseModel, frozen=True, extra="allow", ignored_types=(field_types.lazy_property,)):
    """How one answer was read. `verdict` is the stage at which reading ended; `DONE` means accepted."""

    parser: str
    transport: field_types.Open[Literal["native_schema", "strict_tool", "json_mode", "prompted", "text"]]
    verdict: field_types.Open[Stage]
    decode: field_types.Open[Literal["strict", "lossless", "guess", "none"]] = "none"
    fixes: tuple[Fix, ...] = ()
    coercions: tuple[Fix, ...] = ()
    patches: tuple[Fix, ...] = ()
    errors: tuple[Violation, ...] = ()
    semantic_check: str = ""
    logprob_mean: float | None = None
    logprob_min: float | None = None

    @field_types.lazy_property
    def wire(self) -> bytes:
        """The trace as it stands in a result's; that of a clean answer is shared by many."""
        return to_json(self)


_system_clock = SystemClock()


class Usage(BaseModel, frozen=True, extra="allow"):
    """Tokens of one attempt as billed. `input_tokens` is the uncached part; `output_tokens` includes thinking.

    `bill_nusd` is the server's own bill, None if it reports none; `bill_problem` is why a part of it was not read.
    `unmetered` is why the tokens are not known: the call is then charged what was set aside.
    """

    input_tokens: field_types.Count = 0
    output_tokens: field_types.Count = 0
    thinking_tokens: field_types.Count = 0
    cache_read_tokens: field_types.Count = 0
    cache_write_5m_tokens: field_types.Count = 0
    cache_write_1h_tokens: field_types.Count = 0
    service_tier: field_types.Text = ""
    speed: field_types.Text = ""
    inference_geo: field_types.Text = ""
    bill_nusd: UnlessNone = None
    bill_problem: field_types.Text = Field(default="", exclude_if=operator.not_)
    unmetered: field_types.Text = Field(default="", exclude_if=operator.not_)

    @property
    def total_input_tokens(self) -> int:
        """All tokens that went in, cached or not."""
        return (
            self.input_tokens
            + self.cache_read_tokens
            + self.cache_write_5m_tokens
            + self.cache_write_1h_tokens
        )

    @property
    def total_tokens(self) -> int:
        """All tokens that went in and came out."""
        return self.total_input_tokens + self.output_tokens


class ExactObject(dict[str, Any]):
    """A decoded JSON object all of whose numbers are int and Decimal: a result takes it as it is."""


def exact_object(value: Any) -> Any:
    """Return what `exact_value` has read, for a result."""
    return ExactObject(value) if isinstance(value, dict) else value


def _exact_numbers(value: Any) -> Any:
    """Turn floats into the Decimals that their shortest spelling says, so that both stores give the same back."""
    if type(value) is ExactObject:
        return value
    if isinstance(value, float):
        return Decimal(float.__repr__(value))
    if isinstance(value, dict):
        return {key: _exact_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_exact_numbers(item) for item in value]
    return value


def _is_actionable(fields: dict[str, Any]) -> bool:
    was_guessed = fields.get("reading") is not None and fields["reading"].decode == "guess"
    is_sound = fields.get("success") and fields.get("validation_passed") and not fields.get("in_doubt")
    return bool(is_sound and not was_guessed and not fields.get("tool_called"))


def _hash_of_output(fields: dict[str, Any]) -> str:
    return sha256_hex(fields["raw_output"].encode())[:16]


NextStep = Literal["", "final", "retry", "ask_again", "raise_cap", "prompt"]
"""What followed from an attempt; empty where it is not recorded. A replay takes the same step.

`prompt`: the provider refused the schema, and the next attempt has it in its prompt.
"""


def has_number_to_lose(value: Any) -> bool:
    """Whether a JSON value that was read with doubles may have lost digits of a number."""
    if isinstance(value, float):
        return True
    if isinstance(value, dict):
        return any(map(has_number_to_lose, value.values()))
    return isinstance(value, list) and any(map(has_number_to_lose, value))


ExactNumbers = Annotated[dict[str, Any], BeforeValidator(_exact_numbers)]


class LLMResult(field_types.RevalidatedModel, frozen=True, extra="allow"):
    """What one attempt gave. Numbers in `parsed_output` are int and Decimal, digit for digit as the model wrote them.

    `cost_nusd` is in whole nano-dollars; `cost_usd` is derived from it (or sets it, if it is given alone). It is never
    below `bill_nusd`, the server's own bill. `unpriced` is the word of the answer that has no price, such as
    `service_tier=on_demand`, and `usage=unknown` if its tokens are not known (`unmetered` says why): the call is then
    charged at least what was set aside.
    `first_cost_nusd` is set if the answer was served from a record: the cost of the first call, which this one did not
    pay again. Rules on money use `original_cost_nusd`, so that they decide the same in a replay.
    `price_book` names the book and `priced_on` the UTC day whose prices counted; `reserved_nusd` and
    `reserved_tokens` were set aside beforehand, as `reservation_id` (empty where nothing was). `in_doubt` marks a call that may have been billed unseen and is charged in full. `actionable` is False
    for anything that must not become a decision, a guessed answer and the call of a tool among them. `tool_called` names
    the tool that the model called instead of answering; of a call that is allowed `parsed_output` is the input.

    No log can spell a lone surrogate (half of a character that UTF-16 cuts in two). In `raw_output` it is kept as
    U+0000: raw control characters are never valid JSON, so a replay that reads the text again refuses it again. In
    every other text it is kept as U+FFFD.
    """

    follows: ClassVar[Mapping[str, frozenset[str]]] = {
        "cost_nusd": frozenset({"cost_usd"}),
        "cost_usd": frozenset({"cost_nusd"}),
        "actionable": frozenset({"success", "validation_passed", "in_doubt", "reading", "tool_called"}),
        "output_hash": frozenset({"raw_output"}),
    }

    result_id: str = Field(default_factory=random_id)
    envelope_id: str
    timestamp: field_types.Moment = Field(default_factory=_system_clock.now)
    raw_output: field_types.AnswerText = ""
    parsed_output: ExactNumbers = Field(default_factory=dict)
    validation_passed: bool = False
    validation_errors: list[field_types.Text] = Field(default_factory=list)
    latency_ms: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    input_tokens: field_types.Count = 0
    output_tokens: field_types.Count = 0
    thinking_tokens: field_types.Count = 0
    cache_read_tokens: field_types.Count = 0
    cache_write_5m_tokens: field_types.Count = 0
    cache_write_1h_tokens: field_types.Count = 0
    service_tier: field_types.Text = ""
    speed: field_types.Text = ""
    inference_geo: field_types.Text = ""
    bill_nusd: UnlessNone = None
    bill_problem: field_types.Text = Field(default="", exclude_if=operator.not_)
    unmetered: field_types.Text = Field(default="", exclude_if=operator.not_)
    unpriced: field_types.Text = Field(default="", exclude_if=operator.not_)
    cost_nusd: field_types.Count = 0
    cost_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    first_cost_nusd: UnlessNone = None
    reserved_nusd: field_types.Count = 0
    reserved_tokens: field_types.Count = 0
    reservation_id: field_types.Text = Field(default="", exclude_if=operator.not_)
    price_book: field_types.Text = ""
    priced_on: date | None = None
    provider: LLMProvider = LLMProvider.ANTHROPIC
    model: field_types.Text = ""
    model_requested: field_types.Text = ""
    stop_reason: field_types.Text = ""
    provider_request_id: field_types.Text = ""
    provider_response_id: field_types.Text = ""
    attempt_number: field_types.PositiveCount = 1
    error: field_types.Text | None = None
    success: bool = True
    failure: FailureReason | None = None
    reading: AttemptTrace | None = None
    tool_called: field_types.Text = Field(default="", exclude_if=operator.not_)
    determinism_level: field_types.Open[DeterminismLevel] = DeterminismLevel.PINNED
    served_from: field_types.Open[Literal["live", "recorded"]] = "live"
    sampling_applied: bool = False
    in_doubt: bool = False
    actionable: bool = Field(default_factory=_is_actionable)
    dispatched_at: field_types.Moment | None = None
    finished_at: field_types.Moment | None = None
    next_step: field_types.Open[NextStep] = ""
    output_hash: str = Field(default_factory=_hash_of_output)

    @model_validator(mode="before")
    @classmethod
    def _one_cost(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        nusd, usd = fields.get("cost_nusd"), fields.get("cost_usd")
        if nusd is None and usd is not None:
            return {**fields, "cost_nusd": nusd_from_usd(usd)}
        if isinstance(nusd, int) and usd is None:
            return {**fields, "cost_usd": nusd / NANO}
        if isinstance(nusd, int) and usd is not None and usd != nusd / NANO and nusd != nusd_from_usd(usd):
            raise ValueError(f"cost_nusd={nusd} and cost_usd={usd} disagree; give one of them")
        return fields

    @classmethod
    def made(cls, usage: Usage, **fields: Any) -> Self:
        """Return the result that validation makes of `fields` and `usage`; of an accepted answer nothing is validated again.

        `fields` are all but those that have a default or follow from others. What an adapter must not give is refused:
        texts that are not plain ASCII, counts beyond the largest and fields of a newer API are validated.
        """
        said, charged = map(fields.__getitem__, _SAID), map(fields.__getitem__, _CHARGED)
        is_plain = fields["success"] and not usage.model_extra and max(charged) <= field_types.LARGEST_COUNT
        if not is_plain or not all(type(text) is str and text.isascii() for text in said):
            return cls(**vars(usage) | (usage.model_extra or {}), **fields)
        values = {**_DEFAULTS, **vars(usage), **fields, "parsed_output": dict(fields["parsed_output"])}
        values["raw_output"] = field_types.still_unreadable(fields["raw_output"])
        values["cost_usd"] = fields["cost_nusd"] / NANO
        values["actionable"] = _is_actionable(values)
        values["output_hash"] = _hash_of_output(values)
        given = {*vars(usage), *fields, "cost_usd"}
        extra: dict[str, Any] = {"__pydantic_extra__": {}, "__pydantic_private__": None}
        made = cls.__new__(cls)
        made.__setstate__({"__dict__": values, "__pydantic_fields_set__": given, **extra})
        return made

    @property
    def usage(self) -> Usage:
        """The tokens of this attempt."""
        return Usage(**{name: getattr(self, name) for name in Usage.model_fields})

    @property
    def charged_tokens(self) -> int:
        """The tokens that count against limits: those that were set aside where the used ones are not known."""
        return self.reserved_tokens if self.in_doubt or self.unmetered else self.usage.total_tokens

    @property
    def counts_as_sent(self) -> bool:
        """Whether a dispatched attempt counts as a call: it was answered or charged, or may have been.

        An answer that could not be used has no `reading`, and it may be free: its tokens then show that it came.
        """
        is_metered = bool(self.cost_nusd or self.usage.total_tokens or self.unmetered)
        return is_metered or self.in_doubt or self.reading is not None

    @property
    def original_cost_nusd(self) -> int:
        """The cost of the first call with this answer: the same in a run, in its replay and in a replay of that."""
        return self.cost_nusd if self.first_cost_nusd is None else self.first_cost_nusd

    @property
    def unusable_reason(self) -> FailureReason | None:
        """Why there is nothing to act on, None for a usable answer; one may be read to its end and be for display only."""
        if self.failure is not None or self.actionable:
            return self.failure
        if not self.success:
            return FailureReason(category=FailureKind.INTERNAL_ERROR, description=self.error or "failed")
        was_guessed = self.reading is not None and self.reading.decode == "guess"
        what = "was guessed: it is for display only" if was_guessed else "is marked as not actionable"
        if self.tool_called:
            what = (
                f"is a call of the tool {self.tool_called!r}, whose result is evidence for another envelope"
            )
        return FailureReason(
            category=FailureKind.PARSING_ERROR, description=self.error or f"the answer {what}"
        )

    def raise_for_failure(self) -> Self:
        """Return self if the call gave a usable answer; otherwise raise the error that says why.

        Raises `LLMBudgetExhaustedError`, `LLMResponseValidationError` or `LLMCallError`.
        """
        reason = self.unusable_reason
        if reason is None:
            return self
        match reason.category:
            case FailureKind.BUDGET_EXHAUSTED:
                raise LLMBudgetExhaustedError.of(reason)
            case FailureKind.PARSING_ERROR:
                raise LLMResponseValidationError(self.validation_errors or [reason.description])
            case _:
                raise LLMCallError(reason)

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Read a result with every number of `parsed_output` exact; raises `ValueError` for what is none."""
        fields = orjson.loads(raw)
        if has_number_to_lose(fields["parsed_output"]):
            fields["parsed_output"] = exact_object(exact_value(raw)["parsed_output"])
        return cls.model_validate(fields, context=field_types.ON_RECORD)

    @field_types.lazy_property
    def wire(self) -> bytes:
        """The result as it stands in the log: `parsed_output` with every number as it was written."""
        return b'%b,"parsed_output":%b}' % (self._head()[:-1], exact_bytes(self.parsed_output))

    def _head(self) -> bytes:
        """Spell all but `parsed_output` as pydantic does; its own serializer is needed for what orjson spells otherwise."""
        moments = self.timestamp, self.dispatched_at, self.finished_at
        if self.model_extra or any(moment is not None and moment.tzinfo is not UTC for moment in moments):
            return _HEAD.dump_json(self, exclude={"parsed_output"})
        fields = {**self.__dict__}  # in the order of the model, which is that of the log
        del fields["parsed_output"]
        for name in _LEFT_OUT:
            if fields[name] is None or fields[name] == "":
                del fields[name]
        fields["reading"] = None if self.reading is None else Fragment(self.reading.wire)
        return orjson.dumps(fields, default=_spelled_by_pydantic, option=orjson.OPT_UTC_Z)


_HEAD = TypeAdapter(LLMResult)
_DEFAULTS: Final = {name: field.default for name, field in LLMResult.model_fields.items()}
_LEFT_OUT: Final = (
    "reservation_id",
    "tool_called",
    "bill_nusd",
    "bill_problem",
    "unmetered",
    "unpriced",
    "first_cost_nusd",
)
_CHARGED: Final = ("cost_nusd", "reserved_nusd", "reserved_tokens")
_SAID: Final = (
    "stop_reason",
    "model",
    "provider_request_id",
    "provider_response_id",
    "tool_called",
    "unpriced",
)


def _spelled_by_pydantic(value: Any) -> Fragment:
    return Fragment(to_json(value))
