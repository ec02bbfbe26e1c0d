"""The provider of `fleet.py`, which answers at once; and a clock at each step of the worker that it is loaded into."""

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from agentic_trading.bus.brokers.kafka.broker import MessagePublisher
from agentic_trading.governance.ledgers.redis import RedisLedger
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider
from agentic_trading.llm.result import Usage
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore
from agentic_trading.platform.adapters import ProviderContext
from agentic_trading.worker.claims.redis import RedisClaimStore
from agentic_trading.worker.outbox import Outbox

MODEL: Final = "instant-1"
ANSWER: Final = '{"action":"wait","size":0}'
STEPS_FILE: Final = "FLEET_STEPS"
"""The variable that names the file for what the steps took."""

STEPS: Final = (
    (RedisClaimStore, "claim"),
    (RedisLedger, "reserve"),
    (RedisClaimStore, "intend"),
    (JsonFileInteractionStore, "record"),
    (RedisLedger, "dispatch"),
    (RedisClaimStore, "keep"),
    (RedisLedger, "settle"),
    (JsonFileInteractionStore, "store"),
    (Outbox, "reached"),
    (MessagePublisher, "publish_all"),
    (RedisClaimStore, "finish"),
)
"""The steps of a call that wait for a server or a disk, in their order; what is published are replies and the outbox's lines."""


class _Instant:
    """Answers at once. When it is closed, what the steps took is written down."""

    def __init__(self, took_ms: dict[str, list[float]]) -> None:
        self._took_ms = took_ms

    async def complete(self, request: ModelRequest) -> ModelResponse:  # noqa: ARG002 - the port's signature
        return ModelResponse(ANSWER, "end_turn", Usage(input_tokens=100, output_tokens=20), MODEL)

    async def count_tokens(self, request: ModelRequest) -> int | None:  # noqa: ARG002 - likewise
        return None

    async def aclose(self) -> None:
        if self._took_ms:
            text = json.dumps(self._took_ms)
            Path(os.environ[STEPS_FILE]).write_text(text, encoding="utf-8")  # noqa: ASYNC240 - all is over


def instant(_context: ProviderContext) -> Provider:
    """Return a provider without latency."""
    return _Instant({})


def timed(_context: ProviderContext) -> Provider:
    """Return a provider without latency, and time each step of this process from now on."""
    took_ms: dict[str, list[float]] = {}
    for owner, step in STEPS:
        name = f"{owner.__name__}.{step}"
        setattr(owner, step, _timed(getattr(owner, step), took_ms.setdefault(name, [])))
    return _Instant(took_ms)


def _timed(method: Callable[..., Any], took_ms: list[float]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def taken(*given: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        try:
            return await method(*given, **named)
        finally:
            took_ms.append(1000 * (time.perf_counter() - begin))

    return taken
