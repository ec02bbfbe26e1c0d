"""Notices that asking further is of no use: the key, the account or the address is wrong."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from agentic_trading.client.gateway import GatewayReply, Gateway
from agentic_trading.errors import TradingError
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.event import Event
from agentic_trading.llm.failure import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.provider import ModelRequest, Provider

COUNTED_WITHIN_S = 15.0

ALWAYS = frozenset({FailureKind.AUTH_ERROR, FailureKind.BILLING})
"""What the next call would fail of as well, whenever it happens."""

AT_FIRST = ALWAYS | {FailureKind.SERVER_ERROR, FailureKind.INVALID_REQUEST, FailureKind.INTERNAL_ERROR}
"""What, of a provider that has not answered yet, says that it will not: no server there, an unknown model, no schema."""


class UnusableProviderError(TradingError):
    """A live run cannot go on, as its calls fail of what no later call would escape: `reason` says of what.

    `begun` says that the session has a folder already, where its calls are on record.
    """

    def __init__(self, provider: str, reason: FailureReason, *, begun: bool) -> None:
        self.provider = provider
        self.reason = reason
        self.begun = begun
        goes_on = "; what was asked is on record, and --resume goes on behind it" if begun else ""
        told = f"{provider} cannot be used ({reason.category}): {reason.description}"
        super().__init__(f"{told}; put that right, or take another --provider{goes_on}")


async def refuse_unusable(
    provider: Provider, requests: Sequence[ModelRequest], *, has_own_server: bool
) -> None:
    """Have a request of each model counted, where the provider counts for nothing: it proves key, address and model.

    Raises `UnusableProviderError`. What may pass (a time-out, a rate limit) is left to the first call, and so is what
    a server of one's own (`has_own_server`) says about a request: it may not know how to count.
    """
    fatal = ALWAYS | ({FailureKind.SERVER_ERROR} if has_own_server else AT_FIRST)
    for request in requests:
        try:
            async with asyncio.timeout(COUNTED_WITHIN_S):
                await provider.count_tokens(request)
        except TimeoutError:
            return
        except ProviderError as e:
            if e.kind in fatal and not (has_own_server and e.sent):
                reason = FailureReason(category=e.kind, description=e.message)
                raise UnusableProviderError(request.envelope.provider, reason, begun=False) from e


@dataclass(slots=True)
class ProviderOutage:
    """What a run has seen of its provider: whether it ever answered, and a failure that further calls would share."""

    answered: bool = False
    failure: FailureReason | None = None

    def around(self, gateway: Gateway) -> Gateway:
        """Return a gateway that looks at each answer."""
        return OutageAwareGateway(gateway, self)

    def hear(self, answer: GatewayReply) -> None:
        """Take note of a call that has ended, after its retries; one that was not sent, or not live, tells nothing."""
        if isinstance(answer, NoDecision):
            return
        result = answer.result
        if result.dispatched_at is None or result.served_from == "recorded":
            return
        if result.reading is not None:
            self.answered = True
            return
        failed_of = ALWAYS if self.answered else AT_FIRST
        if result.failure is not None and result.failure.category in failed_of:
            self.failure = self.failure or result.failure


class OutageAwareGateway:
    """A gateway whose answers an `Outage` sees."""

    def __init__(self, gateway: Gateway, outage: ProviderOutage) -> None:
        self._gateway = gateway
        self._outage = outage

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Ask, and look at what came."""
        answer = await self._gateway.ask(envelope)
        self._outage.hear(answer)
        return answer

    async def record(self, event: Event) -> None:
        """Record."""
        await self._gateway.record(event)
