"""Live parts of pages: one reader for all open browsers."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final

from agentic_trading.cancellation import set_within
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.errors import TradingError
from agentic_trading.logger import get_logger
from agentic_trading.monitor.page import LivePage, NotShownError, PageRequest

log = get_logger()

EVERY_S: Final = 1.0
"""Seconds between two readings."""

LONGEST_PAUSE_S: Final = 2.0
"""Seconds of the pause after a slow reading, so that thousands of counters leave time for pages."""

MOST_STREAMS: Final = 64
"""Streams at once. A browser that opens one more shows its page without updates."""

READY_WITHIN_S: Final = 5.0
"""Seconds that the first request waits for the first reading."""

_Watched = tuple[str, tuple[tuple[str, str], ...]]
Render = Callable[[LivePage, PageRequest], Awaitable[str]]
"""Returns the live part of a page."""


class LiveParts:
    """Reads live pages once a second, and renders each watched part once for all streams.

    Args:
        pages: The live pages.
        render: Returns the live part of a page.
        clock: The clock of the pauses.

    """

    def __init__(self, pages: Sequence[LivePage], render: Render, *, clock: Clock | None = None) -> None:
        self._pages = {page.name: page for page in pages}
        self._render = render
        self._clock = clock or SystemClock()
        self._problems: dict[str, str] = {}
        self._watched: Counter[_Watched] = Counter()
        self._parts: dict[_Watched, str] = {}
        self._changed = asyncio.Condition()
        self._ready = {page.name: asyncio.Event() for page in pages}
        self._is_closed = False

    async def run(self) -> None:
        """Read and render until it is cancelled. A page that waits for its server does not delay the others."""
        async with asyncio.TaskGroup() as group:
            for page in self._pages.values():
                group.create_task(self._run(page), name=f"dashboard-{page.name}")

    async def _run(self, page: LivePage) -> None:
        while True:
            began = self._clock.monotonic()
            await self._refresh(page)
            self._ready[page.name].set()
            await self._render_watched(page)
            took = self._clock.monotonic() - began
            await self._clock.sleep(max(EVERY_S - took, min(took, LONGEST_PAUSE_S)))

    async def ready(self, page: str) -> None:
        """Wait for the first reading of a page, but not for long."""
        await set_within(READY_WITHIN_S, self._ready[page])

    def problem(self, page: str) -> str:
        """Return why the last reading of a page failed, or an empty text."""
        return self._problems.get(page, "")

    @property
    def is_full(self) -> bool:
        """Whether there are as many streams as allowed."""
        return self._watched.total() >= MOST_STREAMS

    async def stream(self, page: LivePage, request: PageRequest) -> AsyncGenerator[str]:
        """Yield the live part of a page each time it has changed, until the dashboard closes."""
        key = (page.name, tuple(sorted(request.query.items())))
        self._watched[key] += 1
        sent = ""
        try:
            while not self._is_closed:
                async with self._changed:
                    await self._changed.wait()
                    part = self._parts.get(key, sent)
                if not part and key in self._parts:
                    return
                if part != sent:
                    yield part
                    sent = part
        finally:
            self._watched[key] -= 1
            if not self._watched[key]:
                del self._watched[key]
                self._parts.pop(key, None)

    async def aclose(self) -> None:
        """End all streams."""
        async with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    async def _refresh(self, page: LivePage) -> None:
        try:
            await page.refresh()
        except Exception as e:  # noqa: BLE001 - the page says it, and the next reading may succeed
            text = str(e) if isinstance(e, TradingError) else f"internal error ({type(e).__name__})"
            if self._problems.get(page.name) != text:
                # In a thread, because a traceback reads source files.
                await asyncio.to_thread(
                    log.error, "dashboard_read_failed", page=page.name, error=text, exc_info=e
                )
            self._problems[page.name] = text
        else:
            self._problems.pop(page.name, None)

    async def _render_watched(self, page: LivePage) -> None:
        parts = {}
        for key in [each for each in self._watched if each[0] == page.name]:
            try:
                parts[key] = await self._render(page, PageRequest(page.paths[0], query=dict(key[1])))
            except NotShownError:
                parts[key] = ""  # it was shown when the browser opened it, and its stream ends now
            except Exception as e:  # noqa: BLE001 - one part must not stop the others
                await asyncio.to_thread(log.error, "dashboard_page_failed", page=page.name, exc_info=e)
        async with self._changed:
            self._parts |= {key: part for key, part in parts.items() if key in self._watched}
            self._changed.notify_all()
