"""The result of one attempt: the answer, its cost, and how it was read."""

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
    """The stage at which reading an answer ended.

    Attributes:
        DONE: The answer was accepted.
        PASSED_ON: The answer to a client's own request, not validated here.

    """

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
    PASSED_ON = "passed_on"


class Violation(BaseModel, frozen=True, extra="allow"):
    """A rule that a value breaks.

    Attributes:
        path: The JSON path of the value, such as `$.legs[0].qty`.
        allowed: The values or bounds that would pass.
        suggestion: The nearest allowed value. It is shown to the model, never put into the data.

    """

    path: field_types.Text
    keyword: str
    message: field_types.Text
    expected: field_types.Legible = None
    actual: field_types.Legible = None
    allowed: field_types.Legible = None
    suggestion: field_types.Legible = None


class Fix(BaseModel, frozen=True, extra="allow"):
    """A change made while reading an answer.

    Attributes:
        where: A path, or an offset in the text.

    """

    kind: str
    where: field_types.Text
    before: field_types.Text = ""
    after: field_types.Text = ""


class AttemptTrace(BaseModel, frozen=True, extra="allow", ignored_types=(field_types.lazy_property,)):
    """How an answer was read.

    Attributes:
        verdict: The stage at which reading ended. `DONE` means accepted.
        transport: How the form of the answer was requested.
        decode: How the text was read as JSON.
        fixes: Repairs of the text.
        coercions: Values that were converted to the type of the schema.

    """

    parser: str
    transport: field_types.Open[
        Literal["native_schema", "strict_tool", "json_mode", "prompted", "text", "verbatim"]
    ]
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
        """The trace as JSON, as it is in the wire bytes of a result."""
        return to_json(self)


_system_clock = SystemClock()


class Usage(BaseModel, frozen=True, extra="allow"):
    """Tokens of one attempt, as billed.

    Attributes:
        input_tokens: Input tokens that were not cached.
        output_tokens: Output tokens, thinking included.
        bill_nusd: The server's own bill in nano-dollars, None if it reports none.
        bill_problem: Why a part of the bill was not read.
        unmetered: Why the tokens are unknown. The call is then charged the reserved amount.

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
        """All input tokens, cached or not."""
        return (
            self.input_tokens
            + self.cache_read_tokens
            + self.cache_write_5m_tokens
            + self.cache_write_1h_tokens
        )

    @property
    def total_tokens(self) -> int:
        """All input and output tokens."""
        return self.total_input_tokens + self.output_tokens


class ExactObject(dict[str, Any]):
    """A JSON object whose numbers are all int or Decimal. A result uses it unchanged."""


def exact_object(value: Any) -> Any:
    """Mark a value from `exact_value` as exact, for a result."""
    return ExactObject(value) if isinstance(value, dict) else value


def _exact_numbers(value: Any) -> Any:
    """Return a value with its floats as Decimals."""
    if type(value) is ExactObject:
        return value
    # By the shortest text of the float, so that both stores return the same number.
    if isinstance(value, float):
        return Decimal(float.__repr__(value))
    if isinstance(value, dict):
        return {key: _exact_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_exact_numbers(item) for item in value]
    return value


def _is_actionable(fields: dict[str, Any]) -> bool:
    reading = fields.get("reading")
    # An answer that is passed on is for its client to judge.
    if reading is not None and (reading.decode == "guess" or reading.transport == "verbatim"):
        return False
    is_sound = fields.get("success") and fields.get("validation_passed") and not fields.get("in_doubt")
    return bool(is_sound and not fields.get("tool_called"))


def _hash_of_output(fields: dict[str, Any]) -> str:
    return sha256_hex(fields["raw_output"].encode())[:16]


NextStep = Literal["", "final", "retry", "ask_again", "raise_cap", "prompt"]
"""The step that followed an attempt, empty if it is not recorded.

A replay takes the same step. `prompt`: the provider refused the schema, and the next attempt has it in its
prompt.
"""


def has_number_to_lose(value: Any) -> bool:
    """Return whether a JSON value that was read with floats may have lost digits."""
    if isinstance(value, float):
        return True
    if isinstance(value, dict):
        return any(map(has_number_to_lose, value.values()))
    return isinstance(value, list) and any(map(has_number_to_lose, value))


ExactNumbers = Annotated[dict[str, Any], BeforeValidator(_exact_numbers)]


class LLMResult(field_types.RevalidatedModel, frozen=True, extra="allow"):
    """The result of one attempt.

    No log can store a lone surrogate (half of a UTF-16 pair). In `raw_output` it is kept as U+0000, which is
    never valid in JSON, so a replay rejects the text again. In other texts it is kept as U+FFFD.

    Attributes:
        parsed_output: The answer. Numbers are int and Decimal, with all digits that the model wrote.
        cost_nusd: The charge in nano-dollars. It is never below `bill_nusd`.
        cost_usd: The same in dollars. It may be given instead of `cost_nusd`.
        bill_nusd: The server's own bill in nano-dollars, None if it reports none.
        unmetered: Why the tokens are unknown.
        unpriced: The part of the answer without a price, such as `service_tier=on_demand`, or `usage=unknown`
            if the tokens are unknown. The charge is then at least the reserved amount.
        first_cost_nusd: The cost of the first call, if the answer was served from a record. It is not paid
            again.
        price_book: The name of the price book.
        priced_on: The UTC day whose prices were used.
        reserved_nusd: The nano-dollars that were reserved before the call.
        reserved_tokens: The tokens that were reserved before the call.
        reservation_id: The id of the reservation, empty if there was none.
        in_doubt: The call may have been billed without an answer. It is charged in full.
        actionable: False if the answer must not become a decision, for example if it was guessed or calls a
            tool.
        tool_called: The tool that the model called instead of answering. `parsed_output` is the input of an
            allowed call.

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
            raise ValueError(f"cost_nusd={nusd} and cost_usd={usd} disagree. Give one of them")
        return fields

    @classmethod
    def made(cls, usage: Usage, **fields: Any) -> Self:
        """Return a result without validating an accepted answer again.

        Failed attempts, texts that are not ASCII, counts above the largest, and unknown fields are validated.

        Args:
            usage: The tokens of the attempt.
            fields: All other fields, except those that have a default or follow from others.

        """
        # Values of an adapter that could break a rule are validated, so that the shortcut gives the same
        # result.
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
        """The tokens that count against limits: those used, or those reserved if unknown."""
        return self.reserved_tokens if self.in_doubt or self.unmetered else self.usage.total_tokens

    @property
    def counts_as_sent(self) -> bool:
        """Whether a dispatched attempt counts as a call.

        It does if it was answered or charged, or may have been. An unusable answer has no `reading` and may
        be free: its tokens then show that there was one.
        """
        is_metered = bool(self.cost_nusd or self.usage.total_tokens or self.unmetered)
        return is_metered or self.in_doubt or self.reading is not None

    @property
    def original_cost_nusd(self) -> int:
        """The cost of the first call with this answer, in nano-dollars.

        It is the same in a run and in all its replays. Use it for rules on money, so that a replay decides
        the same.
        """
        return self.cost_nusd if self.first_cost_nusd is None else self.first_cost_nusd

    @property
    def unusable_reason(self) -> FailureReason | None:
        """The reason why you may not act on the answer, None if you may.

        A complete answer may still be for display only.
        """
        if self.failure is not None or self.actionable:
            return self.failure
        if not self.success:
            return FailureReason(category=FailureKind.INTERNAL_ERROR, description=self.error or "failed")
        what = "is marked as not actionable"
        if self.reading is not None and self.reading.decode == "guess":
            what = "was guessed: it is for display only"
        if self.reading is not None and self.reading.transport == "verbatim":
            what = "was passed on to its client, who judges it"
        if self.tool_called:
            what = (
                f"is a call of the tool {self.tool_called!r}, whose result is evidence for another envelope"
            )
        return FailureReason(
            category=FailureKind.PARSING_ERROR, description=self.error or f"the answer {what}"
        )

    def raise_for_failure(self) -> Self:
        """Return self if the answer is usable.

        Raises:
            LLMBudgetExhaustedError: If a budget refused the call.
            LLMResponseValidationError: If the answer could not be read, or must not be acted on.
            LLMCallError: If the call failed for another reason.

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
        """Read a result. Numbers in `parsed_output` stay exact.

        Raises:
            ValueError: If the bytes are not JSON, or a field is wrong.
            KeyError: If `parsed_output` is missing.

        """
        fields = orjson.loads(raw)
        if has_number_to_lose(fields["parsed_output"]):
            fields["parsed_output"] = exact_object(exact_value(raw)["parsed_output"])
        return cls.model_validate(fields, context=field_types.ON_RECORD)

    @field_types.lazy_property
    def wire(self) -> bytes:
        """The result as JSON for the log.

        Numbers in `parsed_output` keep all their digits.
        """
        return b'%b,"parsed_output":%b}' % (self._head()[:-1], exact_bytes(self.parsed_output))

    def _head(self) -> bytes:
        """Serialize all fields except `parsed_output`, in the same form as pydantic."""
        moments = self.timestamp, self.dispatched_at, self.finished_at
        # By pydantic's own serializer, because orjson writes these in another form.
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
