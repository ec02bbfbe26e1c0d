"""The callers of `http_money.py`: 64 at once, each streams a call and asks again as the vendors' libraries do."""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from http import HTTPStatus
from random import Random

import aiohttp

from benchmarks.peers.load import DOLLARS, MODEL

CALLERS = 64
AGAIN_S = 0.2
PATIENCE_S = 300.0
"""Seconds in which each request must end."""
UNSENT = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


@dataclass
class Calls:
    """Calls that are made, and how they ended.

    `ends` counts the last state of each call, `asked_again` the replies after which it was asked again: `429`, `503`, and `lost` for
    a connection that broke.
    """

    names: deque[str]
    drops: float = 0.0
    latency_s: float = 1.0
    ends: Counter[str] = field(default_factory=Counter)
    asked_again: Counter[str] = field(default_factory=Counter)
    costs: dict[str, int] = field(default_factory=dict)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each answer. Who waits for the next one clears it."""

    async def make(self, url: str, secret: str, callers: int = CALLERS) -> None:
        """Make every call, `callers` of them at once."""
        headers = {"authorization": f"Bearer {secret}"}
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        # A connection each, so that one that is dropped is no other call's.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with (
            aiohttp.ClientSession(
                base_url=url, headers=headers, timeout=timeout, connector=connector
            ) as session,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(callers):
                group.create_task(self._make_some(session))

    async def _make_some(self, session: aiohttp.ClientSession) -> None:
        while self.names:
            name = self.names.popleft()
            self.ends[await self._end_of(session, name)] += 1
            self.answered.set()

    async def _end_of(self, session: aiohttp.ClientSession, name: str) -> str:
        """Make a call, and again while it may be repeated. Return how it ended."""
        draw = Random(f"drop:{name}")  # noqa: S311 - no secret
        drops_after_s = None
        if draw.random() < self.drops:
            drops_after_s = self.latency_s * draw.uniform(0.1, 1.0)
        asked = 0
        while True:
            try:
                async with asyncio.timeout(drops_after_s):
                    ended, again_s = await self._ask(session, name, asked)
            except TimeoutError:
                return "dropped"
            except aiohttp.ClientError:
                ended, again_s = "lost", AGAIN_S
            if again_s is None:
                return ended
            self.asked_again[ended] += 1
            await asyncio.sleep(again_s)
            asked += ended == "lost"

    async def _ask(self, session: aiohttp.ClientSession, name: str, asked: int) -> tuple[str, float | None]:
        """Send a request. Return its end, and the seconds after which it may be sent again."""
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": name}],
            "max_completion_tokens": DOLLARS.cap,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"x-stainless-retry-count": str(asked)} if asked else {}
        async with session.post("/v1/chat/completions", json=body, headers=headers) as answer:
            text = await answer.text()
            if answer.status in UNSENT and answer.headers.get("x-should-retry") != "false":
                return str(answer.status), float(answer.headers.get("retry-after", AGAIN_S))
            if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
                # Not sent, and the library would raise. The agent of a desk asks again at its next bar.
                return "503", AGAIN_S
            if answer.status != HTTPStatus.OK:
                return str(answer.status), None
            if "data: [DONE]" not in text:
                return "error event" if '"error"' in text else "cut", None
            # A stream that began without its answer has no cost in its headers.
            if (cost := answer.headers.get("x-agentic-cost-nusd")) is not None:
                self.costs[name] = int(cost)
            return "answered", None
