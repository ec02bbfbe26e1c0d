"""The named streams of the bus, and what each of them carries."""

from dataclasses import dataclass
from typing import Final, Generic, Protocol, Self, TypeVar

from agentic_trading.bus.deadletter import DeadLetter
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction


class WireModel(Protocol):
    """A model that knows its bytes on the wire."""

    @property
    def wire(self) -> bytes:
        """The bytes of the model."""
        ...

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Read a model from its bytes; raises `ValueError` for anything else."""
        ...


M = TypeVar("M", bound=WireModel)


@dataclass(frozen=True, slots=True)
class Topic(Generic[M]):
    """A stream of messages that carry `model`.

    `room` is how many times a broker's largest message one of this topic may be.
    """

    name: str
    model: type[M]
    room: int = 1


ENVELOPES: Final = {
    workflow: Topic(f"llm.envelopes.{workflow}", LLMEnvelope) for workflow in EnvelopeWorkflow
}
"""One lane a workflow: an execution envelope never waits behind an analysis."""

INTERACTIONS: Final = Topic("llm.interactions", LLMInteraction, room=4)  # envelope and answer
EVENTS: Final = Topic("llm.events", Event)
DEAD_LETTERS: Final = Topic("llm.dead-letters", DeadLetter, room=2)  # holds another message, in base64
