"""The bars that a run is fed, in files of its folder: a row a bar, so that the run can be played again."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from agentic_trading.canonical import utc_text
from agentic_trading.client.gateway import Gateway, GatewayReply
from agentic_trading.desk.market.bar import Bar
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import Event
from agentic_trading.llm.events import FedBars
from agentic_trading.operate.session_folder import (
    BarsDigest,
    RunManifest,
    SessionFolder,
    replace_file,
    replacing,
    writing,
)

BAR_COLUMNS = (
    "open_time",
    "open",
    "high",
    "low",
    "close",
    "volume",
    "quote_volume",
    "trades",
    "taker_buy_volume",
)

BARS_A_BATCH = 256
"""How many bars wait at most to be written."""


class BarFiles:
    """Keep the bars that a run is fed, so that it can be played again whatever becomes of their source.

    They are written in batches, and at the latest before anything is asked or recorded on them: what a crash leaves out
    was not used, and its source gives it again. Those of a `stream`, which gives nothing twice, are written at once.
    `fed` says how many bars the files of an interrupted run hold: they are fed again, and not added again. Raises
    `StoreError` where a file cannot be written.
    """

    def __init__(
        self,
        folder: SessionFolder,
        manifest: RunManifest,
        fed: Mapping[str, int] = MappingProxyType({}),
        *,
        streams: Collection[str] = (),
    ) -> None:
        run = manifest.run_number
        self._paths = {source.symbol: folder.bars(run, source.symbol) for source in manifest.data}
        self._known = {symbol: fed.get(symbol, 0) for symbol in self._paths}
        self._digests = {symbol: BarsDigest() for symbol in self._paths}
        self._streams = streams
        self._unwritten: list[Bar] = []
        self._writing = asyncio.Lock()

    @property
    def fed(self) -> tuple[FedBars, ...]:
        """What the files hold."""
        return tuple(digest.of(symbol) for symbol, digest in self._digests.items())

    async def open(self) -> None:
        """Start the files with a header, or with the bars that were fed before; a row that a crash has cut goes."""
        for symbol, path in self._paths.items():
            digest, goes_on = self._digests[symbol], self._known[symbol] > 0
            await asyncio.to_thread(_start_bars, path, digest, goes_on=goes_on)

    async def append(self, bars: Sequence[Bar]) -> None:
        """Add bars, each to the file of its symbol."""
        is_due = False
        for bar in bars:
            if self._known[bar.symbol] > 0:
                self._known[bar.symbol] -= 1
            else:
                self._unwritten.append(bar)
                is_due = is_due or bar.symbol in self._streams
        if is_due or len(self._unwritten) >= BARS_A_BATCH:
            await self.write()

    async def write(self) -> None:
        """Write what was added; it is in the files when this returns."""
        if not self._unwritten and not self._writing.locked():
            return
        async with self._writing:
            bars, self._unwritten = self._unwritten, []
            if bars:
                await asyncio.to_thread(self._write, bars)

    def around(self, gateway: Gateway) -> Gateway:
        """Return a gateway before whose every call and event the bars so far are written."""
        return BarsFirstGateway(gateway, self)

    def _write(self, bars: Sequence[Bar]) -> None:
        rows: defaultdict[str, list[bytes]] = defaultdict(list)
        for bar in bars:
            rows[bar.symbol].append(f"{bar_row(bar)}\n".encode())
        for symbol, new in rows.items():
            path = self._paths[symbol]
            with writing(path), path.open("ab") as file:
                file.writelines(new)
            for row in new:
                self._digests[symbol].add(row)


class BarsFirstGateway:
    """A gateway before which the bars of a run are written."""

    def __init__(self, gateway: Gateway, bars: BarFiles) -> None:
        self._gateway = gateway
        self._bars = bars

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Write the bars so far, then ask."""
        await self._bars.write()
        return await self._gateway.ask(envelope)

    async def record(self, event: Event) -> None:
        """Write the bars so far, then record."""
        await self._bars.write()
        await self._gateway.record(event)


def bar_row(bar: Bar) -> str:
    """Return a bar as a row of the columns that `BAR_COLUMNS` names."""
    measures = (getattr(bar, name) for name in BAR_COLUMNS[1:])
    return ",".join((utc_text(bar.open_time), *("" if value is None else str(value) for value in measures)))


def _start_bars(path: Path, digest: BarsDigest, *, goes_on: bool) -> None:
    """Write a file of bars without any, or of the whole rows that it holds where a run `goes_on`; digest its lines."""
    if not goes_on:
        header = f"{','.join(BAR_COLUMNS)}\n".encode()
        digest.add(header)
        replace_file(path, header)
        return
    with writing(path), path.open("rb") as rows, replacing(path) as fresh:
        for row in rows:
            if row.endswith(b"\n"):
                digest.add(row)
                fresh.write(row)
