"""A session's folder: one log, and for each of its runs a manifest, a decision log and the bars that were fed."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import orjson
from pydantic import BaseModel, ValidationError

from agentic_trading.app.options import Mode, OptionError
from agentic_trading.desk.market.bar import Bar
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import StoreError

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


class DataSource(BaseModel, frozen=True):
    """One feed of a run, as it was named."""

    name: str
    symbol: str


class RunManifest(BaseModel, frozen=True):
    """What a run was asked to be and how far it came: what a replay needs, beside the log and the bars.

    `first_seq` is the number of the log line before its first one. `digest` is that of the decision log, None while
    the run has not ended.
    """

    package: str
    session_id: str
    run_number: int
    mode: Mode
    provider: LLMProvider
    model: str
    data: tuple[DataSource, ...]
    bars: int | None
    budget_usd: Decimal
    inject: str
    seed: str
    workers: int
    first_seq: int
    started_at: datetime
    bars_done: int = 0
    interrupted: bool = False
    digest: str | None = None


class SessionFolder:
    """Where the files of a session lie. Run 1 has the plain names, run 2 and later their number in them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def log(self) -> Path:
        """The log of all runs."""
        return self.path / "interactions.jsonl"

    def manifest(self, run: int) -> Path:
        """What run `run` was asked to be."""
        return self.path / f"run{_number(run)}.json"

    def decisions(self, run: int) -> Path:
        """The decision log of a run."""
        return self.path / f"decisions{_number(run)}.jsonl"

    def bars(self, run: int, symbol: str) -> Path:
        """The bars that a run was fed of one symbol."""
        return self.path / f"bars{_number(run)}-{symbol}.csv"

    def last_run(self) -> int:
        """Return the number of the newest run, 0 if there is none."""
        run = 0
        while self.manifest(run + 1).exists():
            run += 1
        return run

    def prepare(self) -> None:
        """Make the folder; raises `StoreError` if it cannot be made or written to."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as e:
            raise StoreError(self.path, f"cannot be written: {e.strerror}; choose another --out") from e

    def read_manifest(self, run: int | None = None) -> RunManifest:
        """Return the manifest of a run, by default the newest; raises `OptionError` if it is not there or not one."""
        number = run or self.last_run()
        if number == 0 or not self.manifest(number).exists():
            raise OptionError(
                "the session", f"{self.path}, run {number or 1}", _allowed_runs(self.last_run())
            )
        try:
            return RunManifest.model_validate_json(self.manifest(number).read_bytes())
        except (ValidationError, OSError) as e:
            raise OptionError(
                str(self.manifest(number)), "not the manifest of a run", "a file that `run` wrote"
            ) from e

    def write_manifest(self, manifest: RunManifest) -> None:
        """Write or replace the manifest of a run, whole or not at all."""
        target = self.manifest(manifest.run_number)
        fresh = target.with_suffix(".new")
        fresh.write_bytes(orjson.dumps(manifest.model_dump(mode="json"), option=orjson.OPT_INDENT_2) + b"\n")
        fresh.replace(target)


class BarFiles:
    """Keep the bars that a run is fed, so that it can be played again whatever becomes of their source."""

    def __init__(self, folder: SessionFolder, manifest: RunManifest) -> None:
        run = manifest.run_number
        self._paths = {source.symbol: folder.bars(run, source.symbol) for source in manifest.data}

    async def open(self) -> None:
        """Start the files anew, each with a header."""
        for path in self._paths.values():
            await asyncio.to_thread(path.write_text, ",".join(BAR_COLUMNS) + "\n", encoding="utf-8")

    async def append(self, bars: Sequence[Bar]) -> None:
        """Add bars, each to the file of its symbol."""
        await asyncio.to_thread(self._write, bars)

    def _write(self, bars: Sequence[Bar]) -> None:
        for bar in bars:
            with self._paths[bar.symbol].open("a", encoding="utf-8") as file:
                file.write(bar_row(bar) + "\n")


def bar_row(bar: Bar) -> str:
    """Return a bar as a row of the columns that `BAR_COLUMNS` names."""
    values = bar.model_dump(mode="json", include=set(BAR_COLUMNS))
    return ",".join("" if values[name] is None else str(values[name]) for name in BAR_COLUMNS)


def _number(run: int) -> str:
    return "" if run == 1 else f"-{run}"


def _allowed_runs(last: int) -> str:
    return f"a run from 1 to {last}" if last else "a folder that `run --out` made"
