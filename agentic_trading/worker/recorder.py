"""Keep first, then tell."""

from agentic_trading.bus.broker import Broker
from agentic_trading.bus.codec import interaction_message
from agentic_trading.bus.topic import INTERACTIONS
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import InteractionStore


class Recorder:
    """Put each attempt into the log, then on the bus: what is told is kept already."""

    def __init__(self, store: InteractionStore, broker: Broker | None = None) -> None:
        self._store = store
        self._broker = broker

    async def keep(self, interaction: LLMInteraction, *, final: bool) -> None:
        """Store an attempt durably, then publish it; `final` marks the last one of its envelope.

        Raises `StoreError` or `RecordError` if it could not be kept; nothing is then published.
        """
        await self._store.store(interaction)
        await self._tell(interaction, final=final)

    async def tell_again(self, envelope: LLMEnvelope) -> bool:
        """Publish the last attempt on record at `envelope` as its final one; returns False where there is none."""
        last = await self._store.get_by_envelope_id(envelope.envelope_id)
        if last is None or last.envelope.envelope_hash != envelope.envelope_hash:
            return False
        await self._tell(last, final=True)
        return True

    async def keep_event(self, event: Event) -> None:
        """Store an event durably; raises `StoreError` or `RecordError` if it could not be kept."""
        await self._store.record(event)

    async def _tell(self, interaction: LLMInteraction, *, final: bool) -> None:
        if self._broker is not None:
            await self._broker.publish(INTERACTIONS, interaction_message(interaction, final=final))
