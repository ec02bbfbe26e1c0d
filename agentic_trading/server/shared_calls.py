"""Calls with an `Idempotency-Key` that several servers of one bus share, so that they publish one envelope."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from agentic_trading.client.call_log import PUBLISHED_AGAIN_WITHIN
from agentic_trading.clock import Clock
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.server import errors
from agentic_trading.server.errors import RequestError
from agentic_trading.worker.claim import ClaimKey, ClaimStore, ClaimStoreUnavailableError

KEPT_S: Final = 48 * 3600.0
"""Seconds for which servers know the first request of an `Idempotency-Key`: longer than claims know its call."""

_OF_THE_FIRST: Final = frozenset({
    "trace_id", "causation_id", "created_at", "deadline", "subject", "step", "occurrence", "request_hash",
    "envelope_hash",
})  # fmt: skip
"""The fields that differ between a request and its repetition, and the hashes that must not."""


@dataclass(slots=True)
class SharedCalls:
    """The first envelope of each `Idempotency-Key`, by agreement of all servers of a bus.

    Claims refuse another content under a known id. A request is therefore published with the ids and times of
    the first one, and gets the answer of its call.

    Attributes:
        claims: The store of the agreement. Its server is that of the claims.
        clock: The system clock.

    """

    claims: ClaimStore
    clock: Clock
    _firsts: dict[str, LLMEnvelope | None] = field(default_factory=dict)

    @contextmanager
    def sharing(self, envelope_id: str) -> Generator[None]:
        """Share the call with this id while the block runs."""
        self._firsts[envelope_id] = None
        try:
            yield
        finally:
            self._firsts.pop(envelope_id, None)

    def published(self, envelope: LLMEnvelope) -> LLMEnvelope:
        """Return an envelope as it was published: as another server did, if that was first."""
        return self._firsts.get(envelope.envelope_id) or envelope

    async def agreed(self, envelope: LLMEnvelope) -> LLMEnvelope:
        """Return the envelope to publish. A call that is not shared is published as it is.

        Raises:
            RequestError: If the `Idempotency-Key` was used for another request or too long ago, or if the
                store is unreachable. The call is then not published.

        """
        if envelope.envelope_id not in self._firsts:
            return envelope
        key = ClaimKey(envelope.tenant_id, derived_id("http-first", envelope.envelope_id))
        own = orjson.dumps(envelope.model_dump(mode="json", include=set(_OF_THE_FIRST)))
        try:
            kept = await self.claims.freeze(key, own, KEPT_S)
        except ClaimStoreUnavailableError as e:
            reason = FailureReason(category=FailureKind.LEDGER_UNAVAILABLE, description=str(e))
            raise RequestError(errors.failure_of(reason), f"{e}. The request was not sent") from e
        if kept == own:
            return envelope
        self._firsts[envelope.envelope_id] = first = self._as_first(envelope, orjson.loads(kept))
        return first

    def _as_first(self, envelope: LLMEnvelope, kept: Mapping[str, Any]) -> LLMEnvelope:
        if kept["request_hash"] != envelope.request_hash:
            raise errors.reused_key()
        changes = {name: value for name, value in kept.items() if not name.endswith("_hash")}
        first = envelope.model_copy(update=changes)
        if first.envelope_hash != kept["envelope_hash"]:
            why = "the rights of its API key, or the version of a server, have changed since"
            raise errors.reused_key(f"the Idempotency-Key was used before, and {why}. Use a new one")
        if (age := self.clock.now() - first.created_at) > PUBLISHED_AGAIN_WITHIN:
            hours = age.total_seconds() / 3600
            why = f"{hours:.0f} hours ago, and this server has no record of its answer"
            raise errors.reused_key(f"the Idempotency-Key was used {why}. Use a new one")
        return first
