"""Bars from a CSV file."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.continuity import Continuity
from agentic_trading.desk.market.errors import FeedUnavailableError
from agentic_trading.desk.market.feed import FeedItem
from agentic_trading.desk.market.bar_rows import BarRows


class CsvFeed:
    """Give the bars of a file of rows as `BarRows` reads them, packed with gzip if it ends in `.gz`.

    The file is read whole, in a thread, when the iteration starts: a year of five-minute bars is about
    9 MB. Raises `FeedUnavailableError` if it cannot be read or unpacked.
    """

    def __init__(self, path: Path, *, symbol: str, timeframe: Timeframe) -> None:
        self.symbol = symbol
        self.timeframe = timeframe
        self._path = path

    async def __aiter__(self) -> AsyncIterator[FeedItem]:
        """Yield the bars and the notes between them."""
        rows = BarRows(self._path.name, self.symbol, self.timeframe)
        continuity = Continuity(self._path.name, self.symbol, self.timeframe)
        content = await asyncio.to_thread(self._content)
        for line, raw in enumerate(content.split(b"\n"), 1):
            bar = rows.read(line, raw)
            if bar is None:
                continue
            for item in continuity.admit(line, bar):
                yield item

    def _content(self) -> bytes:
        try:
            raw = self._path.read_bytes()
            return gzip.decompress(raw) if self._path.suffix == ".gz" else raw
        except (OSError, EOFError, zlib.error) as e:
            raise FeedUnavailableError(str(self._path), str(e)) from e
