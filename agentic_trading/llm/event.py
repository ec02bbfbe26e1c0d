"""Whatever belongs to a trace and is no call: a trigger, an assessment, an intent, a fill, a skip, a budget event."""

from functools import cached_property
from typing import Self

from pydantic import Field

from agentic_trading.canonical import Fragment, assembled_bytes, canonical_bytes
from agentic_trading.llm.fields import JsonObject, Moment, RevalidatedModel, json_of


class Event(RevalidatedModel, frozen=True, extra="allow"):
    """One fact of a trace, in the same log as the interactions.

    `causation_id` is the id of the direct cause (an event, an envelope or an interaction). `as_of` is the market's
    time, `time` when it was recorded. `body` is plain JSON (Decimals as strings).
    """

    kind: str = Field(min_length=1)
    id: str
    trace_id: str
    causation_id: str = ""
    tenant_id: str = "default"
    as_of: Moment | None = None
    time: Moment
    body: JsonObject = Field(default_factory=dict)

    @cached_property
    def wire(self) -> bytes:
        """The event as it stands on the wire and in the log: canonical JSON."""
        if self.model_extra:
            return canonical_bytes({**self.model_dump(), **self.model_extra})
        header = {name: self.__dict__[name] for name in _HEADER}
        return assembled_bytes({**header, "body": Fragment(json_of(self.body))})

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Read an event; raises pydantic's `ValidationError` for anything else."""
        return cls.model_validate_json(raw)


_HEADER = tuple(Event.model_fields.keys() - {"body"})
