"""What providers refused before, so that it is not sent in vain again."""

from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.worker.next_attempt import Attempted, is_schema_refused

MOST_REMEMBERED = 256
"""More would be schemas made for one call each, of which nothing can be learnt."""


class UnsupportedSchemas:
    """The schemas that a model's provider would not take, for as long as this process lives; forgets all when full."""

    def __init__(self) -> None:
        self._known: set[tuple[LLMProvider, str, bytes]] = set()

    def learn(self, request: ModelRequest, attempted: Attempted) -> None:
        """Remember the schema of `request` if that is why it failed."""
        if not is_schema_refused(request, attempted):
            return
        if len(self._known) == MOST_REMEMBERED:
            self._known.clear()
        self._known.add(_key(request.envelope))

    def holds(self, envelope: LLMEnvelope) -> bool:
        """Whether the schema of `envelope` was refused for its model before."""
        return bool(self._known) and _key(envelope) in self._known


def _key(envelope: LLMEnvelope) -> tuple[LLMProvider, str, bytes]:
    return envelope.provider, envelope.model, envelope.output_schema_json
