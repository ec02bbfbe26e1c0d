"""What one envelope may spend, must guarantee, may retry, and how its answer is read."""

from typing import Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from agentic_trading.llm.failure import RETRYABLE, FailureKind

NANO = 1_000_000_000
"""Nano-dollars in a dollar: money is a whole number of them."""


SENTINEL_NAME = "end"
"""The last property of an answer whose policy says `require_sentinel`: a cut answer does not have it."""
SENTINEL_VALUE = "ok"
"""The one value of the sentinel."""


def nusd_from_usd(usd: float) -> int:
    """Return dollars as whole nano-dollars, rounded to the nearest."""
    return round(usd * NANO)


class LLMBudget(BaseModel, frozen=True, extra="forbid"):
    """What one call may use. Token counts are per attempt; `max_cost_nusd` is over all attempts of the envelope.

    `thinking_budget` comes on top of `max_output_tokens`. `max_cost_usd` is accepted in place of
    `max_cost_nusd`; giving both is an error unless they agree.
    """

    max_output_tokens: int = Field(default=4096, gt=0)
    thinking_budget: int = Field(default=0, ge=0)
    max_input_tokens: int | None = Field(default=None, gt=0)
    max_cost_nusd: int | None = Field(default=None, ge=0)
    max_calls_per_day: int | None = Field(default=None, ge=0)

    @property
    def max_cost_usd(self) -> float | None:
        """The cost ceiling in dollars."""
        return None if self.max_cost_nusd is None else self.max_cost_nusd / NANO

    @model_validator(mode="before")
    @classmethod
    def _either_cost_spelling(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or "max_cost_usd" not in fields:
            return fields
        rest = {name: value for name, value in fields.items() if name != "max_cost_usd"}
        usd = fields["max_cost_usd"]
        nusd = None if usd is None else nusd_from_usd(usd)
        if rest.get("max_cost_nusd") not in {None, nusd}:
            raise ValueError("max_cost_usd and max_cost_nusd disagree; give one of them")
        return {**rest, "max_cost_nusd": nusd}


class SafetyConstraints(BaseModel, frozen=True, extra="forbid"):
    """What the answer must guarantee."""

    require_deterministic: bool = False
    require_json: bool = False


class RetryPolicy(BaseModel, frozen=True, extra="allow"):
    """How failed attempts are tried again: waits double from `base_s` up to `max_s`, all in seconds."""

    max_retries: int = Field(default=3, ge=0, le=20)
    base_s: float = Field(default=1.0, gt=0, le=3600, allow_inf_nan=False)
    max_s: float = Field(default=30.0, gt=0, le=3600, allow_inf_nan=False)
    attempt_timeout_s: float = Field(default=60.0, gt=0, le=3600, allow_inf_nan=False)
    retryable: tuple[FailureKind, ...] = RETRYABLE


class OutputPolicy(BaseModel, frozen=True, extra="forbid"):
    """How an answer is asked for and read; part of the request's hash.

    `answers_read` counts answers that may be read (the first one included) before the call gives up.
    `decode` and `candidates` say how much of a text may be taken for JSON. A cut answer is never read:
    `on_truncated="raise_cap_once"` asks once more with `raised_max_output_tokens` (default: twice the cap).
    """

    mode: Literal["native", "lossless", "reask", "salvage"] = "salvage"
    decode: Literal["strict", "lossless", "guess"] = "guess"
    candidates: Literal["whole", "exactly_one", "only_valid", "last_valid"] = "last_valid"
    coerce: bool = True
    drop_extra: bool = True
    protected_keys: tuple[str, ...] = ("veto", "reduce_only", "stop_loss", "kill_switch")
    answers_read: int = Field(default=2, ge=1, le=10)
    on_truncated: Literal["fail", "raise_cap_once"] = "fail"
    raised_max_output_tokens: int | None = Field(default=None, gt=0)
    require_sentinel: bool = False
    on_exhausted: Literal["fail", "degraded"] = "degraded"

    @model_validator(mode="after")
    def _guessing_only_to_salvage(self) -> Self:
        if self.decode == "guess" and self.mode != "salvage":
            raise ValueError(f"decode='guess' is allowed in mode 'salvage' only, not in {self.mode!r}")
        return self
