"""LiteLLM's proxy: `reserve_budget_for_request`, the call, `reconcile_budget_reservation`, for a key with a budget."""

import logging
from typing import Any
from urllib.parse import urlsplit

import litellm
from litellm.caching.redis_cache import RedisCache
from litellm.proxy import proxy_server
from litellm.proxy._types import UserAPIKeyAuth
from litellm.proxy.spend_tracking.budget_reservation import (
    reconcile_budget_reservation,
    reserve_budget_for_request,
)

from benchmarks.peers.load import LOADS, MODEL, NANO, NUSD_PER_TOKEN
from benchmarks.peers.spending import Open, Opening, run_peer

STRICT = "fail_closed"


class Reserved:
    """A key with a budget, in the proxy's own counters; `strict` is its `fail_closed_budget_enforcement`."""

    def __init__(self, key: UserAPIKeyAuth, cap: int, *, strict: bool) -> None:
        self._key = key
        self._strict = strict
        self._body = {
            "model": MODEL,
            "max_tokens": cap,
            "messages": [{"role": "user", "content": "Judge the market."}],
        }

    async def take(self, call: str) -> dict[str, Any] | None:  # noqa: ARG002 - it does not ask which
        """Return a reservation."""
        try:
            return await reserve_budget_for_request(
                request_body=self._body,
                route="/v1/chat/completions",
                llm_router=None,
                valid_token=self._key,
                team_object=None,
                user_object=None,
                prisma_client=None,
                user_api_key_cache=proxy_server.user_api_key_cache,
                proxy_logging_obj=proxy_server.proxy_logging_obj,
                fail_closed_budget_enforcement=self._strict,
            )
        except litellm.BudgetExceededError:
            return None

    async def book(self, leave: dict[str, Any], call: str, nusd: int) -> None:  # noqa: ARG002 - the protocol's
        """Put what was used in the place of what was reserved."""
        await reconcile_budget_reservation(leave, nusd / NANO)


def open_purse(url: str) -> Open:
    """Return what opens a budget, with the price that everybody pays."""
    place = urlsplit(url)
    litellm.register_model({
        MODEL: {
            "litellm_provider": "openai",
            "mode": "chat",
            "max_input_tokens": 200_000,
            "max_output_tokens": 128_000,
            "input_cost_per_token": 0.0,
            "output_cost_per_token": NUSD_PER_TOKEN / NANO,
        }
    })

    async def opened(opening: Opening) -> Reserved:
        if proxy_server.spend_counter_cache.redis_cache is None:
            cache = RedisCache(host=place.hostname, port=place.port)
            proxy_server.spend_counter_cache.redis_cache = cache
        key = UserAPIKeyAuth(token=opening.run, max_budget=opening.budget_nusd / NANO, spend=0.0)
        return Reserved(key, LOADS[opening.load].cap, strict=opening.way == STRICT)

    return opened


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    run_peer(open_purse)
