"""The limits of an envelope: budget, guarantees, retries, reading of the answer."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from agentic_trading.canonical import canonical_bytes
from agentic_trading.llm import fields as field_types
from agentic_trading.llm.errors import RETRYABLE, FailureKind

NANO = 1_000_000_000
"""The number of nano-dollars in a dollar. Money is a whole number of nano-dollars."""


_LARGEST_USD = Decimal(field_types.LARGEST_COUNT) / NANO

SENTINEL_NAME = "end"
"""The last property of an answer if the policy has `require_sentinel`.

A cut answer lacks it.
"""
SENTINEL_VALUE = "ok"
"""The only value of the sentinel."""


def nusd_from_usd(usd: float | Decimal) -> int:
    """Return dollars as whole nano-dollars, rounded to the nearest.

    Raises:
        ValueError: If `usd` is not a number from 0 to 2^53 nano-dollars.

    """
    if isinstance(usd, bool) or not isinstance(usd, int | float | Decimal):
        what = f"a {type(usd).__name__} is no amount of dollars. Pass an int, a float or a Decimal"
        raise ValueError(what)  # noqa: TRY004 - inside a validator a TypeError is not a ValidationError
    if (isinstance(usd, Decimal) and usd.is_nan()) or not 0 <= usd <= _LARGEST_USD:
        raise ValueError(f"{usd!r:.40} is no amount of dollars. Allowed: 0 to {_LARGEST_USD}")
    return round(usd * NANO)


class PolicyPart(field_types.RevalidatedModel, frozen=True):
    """A part of an envelope that caches its JSON: all envelopes share the presets."""

    @field_types.lazy_property
    def wire(self) -> bytes:
        """All fields in canonical JSON."""
        return canonical_bytes(self.model_dump(mode="json"))

    @property
    def given_wire(self) -> bytes:
        """The given fields in canonical JSON, without defaults."""
        return canonical_bytes(self.model_dump(mode="json", exclude_unset=True))


def _is_none(value: object) -> bool:
    return value is None


UnlessNone = Annotated[field_types.Count | None, Field(exclude_if=_is_none)]
"""A count that is left out of the JSON if it is None.

Workers refuse a budget with a field that they do not know.
"""


class LLMBudget(PolicyPart, frozen=True, extra="forbid"):
    """The limits of one call.

    Attributes:
        max_output_tokens: Tokens of the answer, for each attempt.
        thinking_budget: Tokens of thinking, for each attempt, in addition to `max_output_tokens`.
        max_input_tokens: Tokens of the request, for each attempt.
        max_cost_nusd: Nano-dollars for all attempts of the envelope. You may pass `max_cost_usd` instead. If
            you pass both, they must agree.
        max_calls_per_day: Calls of the agent in a day.
        max_trace_cost_nusd: Nano-dollars for all calls of the trace, earlier calls included. Older workers
            refuse it.
        max_trace_calls: Calls of the trace, earlier calls included. Older workers refuse it.

    """

    follows: ClassVar[Mapping[str, frozenset[str]]] = {"max_cost_nusd": frozenset({"max_cost_usd"})}

    max_output_tokens: field_types.PositiveCount = 4096
    thinking_budget: field_types.Count = 0
    max_input_tokens: field_types.PositiveCount | None = None
    max_cost_nusd: field_types.Count | None = None
    max_calls_per_day: field_types.Count | None = None
    max_trace_cost_nusd: UnlessNone = None
    max_trace_calls: UnlessNone = None

    @property
    def max_cost_usd(self) -> float | None:
        """The cost limit in dollars."""
        return None if self.max_cost_nusd is None else self.max_cost_nusd / NANO

    @model_validator(mode="before")
    @classmethod
    def _either_cost_spelling(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or "max_cost_usd" not in fields:
            return fields
        rest = {name: value for name, value in fields.items() if name != "max_cost_usd"}
        usd = fields["max_cost_usd"]
        nusd = None if usd is None else nusd_from_usd(usd)
        if rest.get("max_cost_nusd") not in (None, nusd):
            raise ValueError("max_cost_usd and max_cost_nusd disagree. Give one of them")
        return {**rest, "max_cost_nusd": nusd}


class SafetyConstraints(PolicyPart, frozen=True, extra="forbid"):
    """Guarantees that the answer must give."""

    require_deterministic: bool = False
    require_json: bool = False


class RetryPolicy(PolicyPart, frozen=True, extra="allow"):
    """How failed attempts are retried.

    Waits double from `base_s` up to `max_s` seconds.

    Attributes:
        park_s: The longest wait for money that calls in flight hold, in seconds. The call then fails as
            `budget_busy`, before it is sent. None waits until the deadline. Older workers ignore it.

    """

    max_retries: int = Field(default=3, ge=0, le=20)
    base_s: float = Field(default=1.0, gt=0, le=3600, allow_inf_nan=False)
    max_s: float = Field(default=30.0, gt=0, le=3600, allow_inf_nan=False)
    attempt_timeout_s: float = Field(default=60.0, gt=0, le=3600, allow_inf_nan=False)
    retryable: tuple[FailureKind, ...] = RETRYABLE
    park_s: Annotated[float | None, Field(ge=0, le=3600, allow_inf_nan=False, exclude_if=_is_none)] = None


OutputMode = Literal["native", "lossless", "reask", "salvage"]


class OutputPolicy(PolicyPart, frozen=True, extra="forbid"):
    """How an answer is requested and read. It is part of the request hash.

    Attributes:
        decode: `strict` accepts valid JSON only. `lossless` also repairs errors that have one reading.
            `guess` also lets json-repair guess (extra `[salvage]`): a guessed answer is never actionable.
        candidates: Which object is the answer. `whole`: the whole text. `exactly_one`: the only object in the
            text. `only_valid`: the only one of several that fits. `last_valid`: the last one that fits.
        coerce: Read `"42"` as 42 if the schema asks for a number, and similar values.
        drop_extra: Drop undeclared properties, except `protected_keys`.
        answers_read: How many answers may be read before the call fails, the first one included.
        on_truncated: A cut answer is never read. `raise_cap_once` asks once more with a higher cap.
        raised_max_output_tokens: That cap. Default: twice the first one.

    """

    mode: field_types.Open[OutputMode] = "salvage"
    decode: field_types.Open[Literal["strict", "lossless", "guess"]] = "guess"
    candidates: field_types.Open[Literal["whole", "exactly_one", "only_valid", "last_valid"]] = "last_valid"
    coerce: bool = True
    drop_extra: bool = True
    protected_keys: tuple[str, ...] = ("veto", "reduce_only", "stop_loss", "kill_switch")
    answers_read: int = Field(default=2, ge=1, le=10)
    on_truncated: field_types.Open[Literal["fail", "raise_cap_once"]] = "fail"
    raised_max_output_tokens: field_types.PositiveCount | None = None
    require_sentinel: bool = False
    on_exhausted: field_types.Open[Literal["fail", "degraded"]] = "degraded"

    @model_validator(mode="after")
    def _guessing_only_to_salvage(self) -> Self:
        if self.decode == "guess" and self.mode != "salvage" and not field_types.is_unknown(self.mode):
            raise ValueError(f"decode='guess' is allowed in mode 'salvage' only, not in {self.mode!r}")
        return self
