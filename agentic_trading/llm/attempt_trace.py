"""How one answer was read: what was seen, what was wrong, what was changed."""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel
from pydantic_core import to_json

from agentic_trading.llm.lazy_property import lazy_property
from agentic_trading.llm.wire_types import Legible, Text


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

    path: Text
    keyword: str
    message: Text
    expected: Legible = None
    actual: Legible = None
    allowed: Legible = None
    suggestion: Legible = None


class Fix(BaseModel, frozen=True, extra="allow"):
    """One change made while reading; `where` is a path or an offset in the text."""

    kind: str
    where: Text
    before: Text = ""
    after: Text = ""


class AttemptTrace(BaseModel, frozen=True, extra="allow", ignored_types=(lazy_property,)):
    """How one answer was read. `verdict` is the stage at which reading ended; `DONE` means accepted."""

    parser: str
    transport: Literal["native_schema", "strict_tool", "json_mode", "prompted", "text"]
    verdict: Stage
    decode: Literal["strict", "lossless", "guess", "none"] = "none"
    fixes: tuple[Fix, ...] = ()
    coercions: tuple[Fix, ...] = ()
    patches: tuple[Fix, ...] = ()
    errors: tuple[Violation, ...] = ()
    semantic_check: str = ""
    logprob_mean: float | None = None
    logprob_min: float | None = None

    @lazy_property
    def wire(self) -> bytes:
        """The trace as it stands in a result's; that of a clean answer is shared by many."""
        return to_json(self)
