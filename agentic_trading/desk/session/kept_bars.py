"""The kept bars of a run: the files of all bars that it has used."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from agentic_trading.canonical import utc_text
from agentic_trading.client.gateway import AskingGateway, GatewayReply
from agentic_trading.client.outcome import StructuredOutcome
from agentic_trading.desk.market.bar import Bar
from agentic_trading.files import replace_file
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import BarChecksums, Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.operate.session_folder import BarsDigest, RunManifest, SessionFolder, replacing, writing
from agentic_trading.structured.pydantic_schema import SemanticCheck

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
"""Maximum number of bars in a batch that waits to be written."""


class BarFiles:
    """Writes the bars of a run to files, so that the run can be replayed without their source.

    Bars are written in batches, and always before a call or a record that uses them. Bars that a crash loses
    were not used, and their source has them again. The bars of `streams` are written immediately, because a
    stream does not repeat them.

    Args:
        folder: The folder of the session.
        manifest: The manifest of the run.
        fed: The number of bars in the files of an interrupted run, by symbol. These bars are not written
            again.
        streams: The symbols whose source is a stream.

    Raises:
        StoreError: If a file cannot be written.

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
    def fed(self) -> tuple[BarChecksums, ...]:
        """The checksums of the files, by symbol."""
        return tuple(digest.of(symbol) for symbol, digest in self._digests.items())

    async def open(self) -> None:
        """Start each file with a header or with its earlier bars.

        A row that a crash has cut off is removed.
        """
        for symbol, path in self._paths.items():
            digest, goes_on = self._digests[symbol], self._known[symbol] > 0
            await asyncio.to_thread(_start_bars, path, digest, goes_on=goes_on)

    async def append(self, bars: Sequence[Bar]) -> None:
        """Add each bar to the file of its symbol."""
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
        """Write the added bars. They are in the files when this method returns."""
        if not self._unwritten and not self._writing.locked():
            return
        # A caller that has no bars to add still waits here, because another caller may be writing the bars
        # that it uses.
        async with self._writing:
            bars, self._unwritten = self._unwritten, []
            if bars:
                await asyncio.to_thread(self._write, bars)

    def around(self, gateway: AskingGateway) -> AskingGateway:
        """Return a gateway that writes the bars so far before each call and each event."""
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
    """A gateway that writes the bars of a run before each call and each event."""

    def __init__(self, gateway: AskingGateway, bars: BarFiles) -> None:
        self._gateway = gateway
        self._bars = bars

    async def ask(
        self, envelope: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None
    ) -> GatewayReply:
        """Write the bars so far, and run the call."""
        await self._bars.write()
        return await self._gateway.ask(envelope, earlier=earlier)

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Write the bars so far, and run the typed call."""
        await self._bars.write()
        return await self._gateway.ask_structured(envelope, check=check)

    async def record(self, event: Event) -> None:
        """Write the bars so far, and record the event."""
        await self._bars.write()
        await self._gateway.record(event)


def bar_row(bar: Bar) -> str:
    """Return a bar as a row with the columns of `BAR_COLUMNS`."""
    measures = (getattr(bar, name) for name in BAR_COLUMNS[1:])
    return ",".join((utc_text(bar.open_time), *("" if value is None else str(value) for value in measures)))


def _start_bars(path: Path, digest: BarsDigest, *, goes_on: bool) -> None:
    """Start a file of bars, with its complete rows if the run `goes_on`, and digest its lines."""
    if not goes_on:
        header = f"{','.join(BAR_COLUMNS)}\n".encode()
        digest.add(header)
        with writing(path):
            replace_file(path, header, sync=False)
        return
    with writing(path), path.open("rb") as rows, replacing(path) as fresh:
        for row in rows:
            if row.endswith(b"\n"):
                digest.add(row)
                fresh.write(row)
