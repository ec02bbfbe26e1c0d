"""The outcome of one attempt: what came out, what it cost, how it was read."""

from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field, TypeAdapter, model_validator

from agentic_trading.canonical import exact_bytes, sha256_hex
from agentic_trading.clock import SystemClock
from agentic_trading.ids import random_id
from agentic_trading.llm.envelope import DeterminismLevel, LLMProvider
from agentic_trading.llm.errors import LLMBudgetExhaustedError, LLMCallError, LLMResponseValidationError
from agentic_trading.llm.failure import FailureKind, FailureReason
from agentic_trading.llm.limits import NANO, nusd_from_usd
from agentic_trading.llm.reading import AttemptTrace

_system_clock = SystemClock()


class Usage(BaseModel, frozen=True, extra="allow"):
    """Tokens of one attempt as billed. `input_tokens` is the uncached part; `output_tokens` includes thinking."""

    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    thinking_tokens: int = Field(default=0, ge=0)
    cache_read_tokens: int = Field(default=0, ge=0)
    cache_write_5m_tokens: int = Field(default=0, ge=0)
    cache_write_1h_tokens: int = Field(default=0, ge=0)
    service_tier: str = ""
    speed: str = ""
    inference_geo: str = ""

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


def _exact_numbers(value: Any) -> Any:
    """Turn floats into the Decimals that their shortest spelling says, so that both stores give the same back."""
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, dict):
        return {key: _exact_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_exact_numbers(item) for item in value]
    return value


def _is_actionable(fields: dict[str, Any]) -> bool:
    return bool(fields.get("success") and fields.get("validation_passed") and not fields.get("in_doubt"))


def _hash_of_output(fields: dict[str, Any]) -> str:
    return sha256_hex(fields["raw_output"].encode("utf-8", "surrogatepass"))[:16]


ExactObject = Annotated[dict[str, Any], BeforeValidator(_exact_numbers)]


class LLMResult(BaseModel, frozen=True, extra="allow"):
    """What one attempt gave. Numbers in `parsed_output` are int and Decimal, digit for digit as the model wrote them.

    `cost_nusd` is in whole nano-dollars; `cost_usd` is derived from it (or sets it, if it is given alone).
    `reserved_nusd` was set aside beforehand. `in_doubt` marks a call that may have been billed unseen and is
    charged in full. `actionable` is False for anything that must not become a decision.
    """

    result_id: str = Field(default_factory=random_id)
    envelope_id: str
    timestamp: AwareDatetime = Field(default_factory=_system_clock.now)
    raw_output: str = ""
    parsed_output: ExactObject = Field(default_factory=dict)
    validation_passed: bool = False
    validation_errors: list[str] = Field(default_factory=list)
    latency_ms: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    thinking_tokens: int = Field(default=0, ge=0)
    cache_read_tokens: int = Field(default=0, ge=0)
    cache_write_5m_tokens: int = Field(default=0, ge=0)
    cache_write_1h_tokens: int = Field(default=0, ge=0)
    service_tier: str = ""
    speed: str = ""
    inference_geo: str = ""
    cost_nusd: int = Field(default=0, ge=0)
    cost_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    reserved_nusd: int = Field(default=0, ge=0)
    price_book: str = ""
    provider: LLMProvider = LLMProvider.ANTHROPIC
    model: str = ""
    model_requested: str = ""
    stop_reason: str = ""
    provider_request_id: str = ""
    provider_response_id: str = ""
    attempt_number: int = Field(default=1, ge=1)
    error: str | None = None
    success: bool = True
    failure: FailureReason | None = None
    reading: AttemptTrace | None = None
    determinism_level: DeterminismLevel = DeterminismLevel.PINNED
    served_from: Literal["live", "recorded"] = "live"
    sampling_applied: bool = False
    in_doubt: bool = False
    actionable: bool = Field(default_factory=_is_actionable)
    dispatched_at: AwareDatetime | None = None
    finished_at: AwareDatetime | None = None
    output_hash: str = Field(default_factory=_hash_of_output)

    @model_validator(mode="before")
    @classmethod
    def _one_cost(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        nusd, usd = fields.get("cost_nusd"), fields.get("cost_usd")
        if nusd is None and usd is not None:
            return {**fields, "cost_nusd": nusd_from_usd(float(usd))}
        if nusd is not None and usd is None:
            return {**fields, "cost_usd": nusd / NANO}
        if nusd is not None and usd is not None and nusd != nusd_from_usd(float(usd)):
            raise ValueError(f"cost_nusd={nusd} and cost_usd={usd} disagree; give one of them")
        return fields

    @property
    def usage(self) -> Usage:
        """The tokens of this attempt."""
        return Usage(**{name: getattr(self, name) for name in Usage.model_fields})

    def raise_for_failure(self) -> Self:
        """Return self if the call gave a usable answer; otherwise raise the error that says why.

        Raises `LLMBudgetExhaustedError`, `LLMResponseValidationError` or `LLMCallError`.
        """
        if self.failure is None:
            if self.success:
                return self
            raise LLMCallError(
                FailureReason(category=FailureKind.INTERNAL_ERROR, description=self.error or "failed")
            )
        match self.failure.category:
            case FailureKind.BUDGET_EXHAUSTED:
                raise LLMBudgetExhaustedError(
                    self.failure.description, asked=self.reserved_nusd, left=0, unit="nano-USD"
                )
            case FailureKind.PARSING_ERROR:
                raise LLMResponseValidationError(self.validation_errors or [self.failure.description])
            case _:
                raise LLMCallError(self.failure)

    @cached_property
    def wire(self) -> bytes:
        """The result as it stands in the log: `parsed_output` with every number as it was written."""
        head = _HEAD.dump_json(self, exclude={"parsed_output"})
        return b'%b,"parsed_output":%b}' % (head[:-1], exact_bytes(self.parsed_output))


_HEAD = TypeAdapter(LLMResult)
