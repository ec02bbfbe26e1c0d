"""A record and its bytes: which of the two kinds it is, and what it is known by."""

from collections.abc import Iterable

import orjson

from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import Record

_INTERACTION_BEGINS = b'{"interaction_id":'  # as we write it; the order of members is not part of the format


def record_of(raw: bytes) -> Record:
    """Read a record: with an `interaction_id` it is an interaction, otherwise an event.

    Raises `ValueError` for what is neither.
    """
    if raw.startswith(_INTERACTION_BEGINS) or "interaction_id" in orjson.loads(raw):
        return LLMInteraction.from_wire(raw)
    return Event.from_wire(raw)


def id_of(record: Record) -> str:
    """Return what a record is known by: a log holds it once."""
    return record.interaction_id if isinstance(record, LLMInteraction) else record.id


def interactions(records: Iterable[Record]) -> list[LLMInteraction]:
    """Return the attempts among `records`, in their order."""
    return [record for record in records if isinstance(record, LLMInteraction)]
