"""The provider's own count of what a request sends, for an estimate that holds less than the bytes would."""

import asyncio
from dataclasses import replace

import structlog

from agentic_trading.llm.envelope import DeterminismLevel
from agentic_trading.llm.provider import ModelRequest, Provider
from agentic_trading.worker.error_text import describe_error

LONGEST_S = 5.0
"""A count that takes longer is not waited for."""

MOST_TOKENS = 10**9
"""No request has more: a count of more is none."""

log = structlog.get_logger()


class InputTokenCounter:
    """The input tokens of the requests of one call, by the provider's count; a retry is not counted again."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._request: ModelRequest | None = None
        self._tokens: int | None = None

    async def of(self, request: ModelRequest, patience_s: float) -> int | None:
        """Return how many tokens `request` sends, or None where bytes have to bound them.

        None: the provider has no count to give, failed, or took longer than `LONGEST_S` or `patience_s` seconds; and for
        a request that must not leave the process (`replay_only`), or for which no time is left.
        """
        if request.envelope.determinism is DeterminismLevel.REPLAY_ONLY or patience_s <= 0:
            return None
        asked = replace(request, attempt=1)
        if asked != self._request:
            self._tokens = await self._counted(request, min(LONGEST_S, patience_s))
            self._request = asked
        return self._tokens

    async def _counted(self, request: ModelRequest, patience_s: float) -> int | None:
        try:
            async with asyncio.timeout(patience_s):
                tokens = await self._provider.count_tokens(request)
        except Exception as e:  # noqa: BLE001 - whatever a count fails of, the call goes on without one
            log.warning("tokens_not_counted", envelope_id=request.envelope.envelope_id, error=describe_error(e))
            return None
        return tokens if tokens is not None and 0 < tokens <= MOST_TOKENS else None
