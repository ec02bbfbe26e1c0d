"""What each model takes and offers: one dated table."""

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from importlib.resources import files
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, Field

from agentic_trading.llm.envelope import Effort, LLMProvider
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.provider import Transport
from agentic_trading.llm.dated_table import read_table

Thinking = Literal["adaptive", "enabled", "disabled", "between_tools"]
Knowledge = Literal["in_sample", "post_cutoff", "unknown"]

PACKAGED_MODELS = Path(str(files("agentic_trading.llm") / "models.json"))


class Capability(BaseModel, frozen=True, extra="forbid"):
    """One model as its provider documents it; None and empty mean that nothing is known or offered.

    `sampling`: takes a temperature while thinking is off · `native_schema`: holds its answer to a JSON Schema ·
    `holds_bounds`: to the schema's bounds, lengths, patterns and sizes of arrays as well ·
    `thinking`: the kinds that it takes, `enabled` being the one with a token budget · `served_as`: other ids under
    which the same model may answer · `training_cutoff` and `retires_on`: the last day that counts as before.
    `min_bytes_per_token` is a lower bound: no token covers fewer UTF-8 bytes, so that bytes bound tokens.
    `overhead_tokens` is what a request may hold beyond its own text (framing, tool and schema instructions).
    `most_optional` and `most_unions` are the most optional and union-typed parameters (`anyOf`, or several types)
    that the strict schemas of one request may hold; None: no limit is documented.
    """

    provider: LLMProvider
    model: str = Field(min_length=1)
    sampling: bool
    native_schema: bool
    holds_bounds: bool = False
    forced_tool: bool = False
    strict_tool: bool = False
    json_mode: bool = False
    most_optional: int | None = Field(default=None, ge=0)
    most_unions: int | None = Field(default=None, ge=0)
    thinking: tuple[Thinking, ...] = ()
    effort: tuple[Effort, ...] = ()
    context_tokens: int = Field(gt=0)
    max_output_tokens: int = Field(gt=0)
    served_as: tuple[str, ...] = ()
    training_cutoff: date | None = None
    retires_on: date | None = None
    overhead_tokens: int = Field(ge=0)
    min_bytes_per_token: int = Field(default=1, ge=1)
    logprobs: bool = False
    source: str = Field(min_length=1)
    checked_on: date

    @property
    def transports(self) -> tuple[Transport, ...]:
        """The ways to ask for an object that the model offers, in the order in which they are tried."""
        offered: dict[Transport, bool] = {
            "native_schema": self.native_schema,
            "strict_tool": self.strict_tool,
            "json_mode": self.json_mode,
            "prompted": True,
        }
        return tuple(transport for transport, is_offered in offered.items() if is_offered)


class Capabilities:
    """The table: one row a provider and model."""

    def __init__(self, rows: Iterable[Capability]) -> None:
        self._rows = {(row.provider, row.model): row for row in rows}

    @classmethod
    def load(cls, *extra: Path) -> Self:
        """Read the packaged table, then `extra` ones; a later row replaces an earlier one of the same model.

        Raises `TableError` that names file, row and field.
        """
        return cls(row for path in (PACKAGED_MODELS, *extra) for row in read_table(path, Capability).rows)

    def of(self, provider: LLMProvider, model: str) -> Capability:
        """Return the row of `model` at `provider`; raises `UnknownModelError` if there is none."""
        try:
            return self._rows[provider, model]
        except KeyError:
            known = [f"{row.provider}/{row.model}" for row in self]
            raise UnknownModelError(f"{provider}/{model}", "capability table", known) from None

    def __iter__(self) -> Iterator[Capability]:
        return iter(self._rows.values())

    @staticmethod
    def knowledge(capability: Capability, as_of: datetime | None) -> Knowledge:
        """Say whether the model may have read about `as_of` while it was trained.

        `in_sample` up to and with the day of the training cutoff (UTC), `post_cutoff` after it, `unknown` where
        either is not known.
        """
        if as_of is None or capability.training_cutoff is None:
            return "unknown"
        return "in_sample" if as_of.astimezone(UTC).date() <= capability.training_cutoff else "post_cutoff"
