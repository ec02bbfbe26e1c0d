"""Whole sessions for tests: run into a folder, or played in memory with any provider."""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import orjson
import pytest

from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.samples import load_sample
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.kept_bars import BAR_COLUMNS, bar_row
from agentic_trading.desk.session.options import RunOptions
from agentic_trading.desk.session.report import RunReport
from agentic_trading.desk.session.run import run_session
from agentic_trading.desk.session.session_run import (
    SessionObserver,
    SessionResult,
    SessionSetup,
    play_session,
)
from agentic_trading.desk.session.trading_session import TradingSession
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.ids import fraction
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider, Providers
from agentic_trading.llm.providers.fault_injection import Faults, FaultyProvider
from agentic_trading.llm.providers.offline import RulesProvider
from agentic_trading.llm.store import InteractionStore, Record
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform import port_adapters
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.platform import Ports
from agentic_trading.platform.tables import load_tables
from tests.desk.session.asking import run_options

SAMPLES: Final = ("btcusdt-5m", "ethusdt-5m")
BARS: Final = 600
FAULTS: Final = "malformed=15%,timeout=8%,refusal=8%,cut=8%"
PRICED: Final = (LLMProvider.SCRIPTED, "scripted-prompted-1")
# Read before any loop runs: files are not read on a loop.
TABLES: Final = load_tables()
LOADED: Final = {name: load_sample(name) for name in SAMPLES}
OF_THE_PLATFORM: Final = ("operator.commanded", "run.started", "run.ended")
"""Kinds that the platform records beside what a session's agents do."""
Line = Mapping[str, Any]


def options(out: Path, **changes: Any) -> RunOptions:
    """Return the options of a short run over both samples; `changes` are as for `run_options`."""
    return run_options(**{"data": SAMPLES, "out": out, "bars": BARS, **changes})


async def ran(out: Path, **changes: Any) -> RunReport:
    """Run a session into a folder and return its report."""
    return await run_session(options(out, **changes), on_progress=lambda _progress: None)


def decided(folder: Path, run_number: int = 1) -> bytes:
    """Return the decision log of a run, byte for byte."""
    name = "decisions.jsonl" if run_number == 1 else f"decisions-{run_number}.jsonl"
    return (folder / name).read_bytes()


def lines_of(log: bytes) -> list[Line]:
    """Return the lines of a decision log as objects."""
    return [orjson.loads(line) for line in log.splitlines()]


async def kept_in(log: Path) -> list[Record]:
    """Return every record of a log, in its order."""
    records = JsonlRecords(log)
    try:
        return [entry.record async for entry in records.scan()]
    finally:
        await records.aclose()


def calls_in(records: Sequence[Record]) -> list[LLMInteraction]:
    """Return the attempts among records."""
    return [record for record in records if isinstance(record, LLMInteraction)]


def events_in(records: Sequence[Record], *kinds: str) -> list[Event]:
    """Return the events among records: of these kinds, or, if none are named, all that the session's agents recorded."""
    events = [record for record in records if isinstance(record, Event)]
    return [
        event for event in events if (event.kind in kinds if kinds else event.kind not in OF_THE_PLATFORM)
    ]


def write(path: Path, rows: Sequence[str]) -> None:
    """Write a file of text lines."""
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder, byte for byte."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def rows_in(path: Path) -> list[str]:
    """Return the lines of a text file."""
    return path.read_text(encoding="utf-8").splitlines()


@contextmanager
def on_standard_input(path: Path, rows: Sequence[str]) -> Iterator[None]:
    """Put rows on standard input, from a file at `path`."""
    write(path, rows)
    with path.open(encoding="utf-8") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        yield


def csv_of(bars: Sequence[Bar]) -> list[str]:
    """Return bars as rows of CSV with a header."""
    return [",".join(BAR_COLUMNS), *map(bar_row, bars)]


class Shuffled:
    """Answer as `inner` does, after as many turns of the loop as a hash of the request says: out of order."""

    def __init__(self, inner: Provider, seed: str = "shuffled") -> None:
        self._inner = inner
        self._seed = seed
        self.asked: list[str] = []
        self.answered: list[str] = []

    async def complete(self, request: ModelRequest) -> ModelResponse:
        envelope = request.envelope
        self.asked.append(envelope.envelope_id)
        turns = int(30 * fraction(self._seed, envelope.request_hash, request.attempt))
        for _ in range(turns):
            await asyncio.sleep(0)
        self.answered.append(envelope.envelope_id)
        return await self._inner.complete(request)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return await self._inner.count_tokens(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


class Priced:
    """The rules under the name of a model that has a price."""

    def __init__(self) -> None:
        self._rules = RulesProvider(trading.RULES)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return replace(await self._rules.complete(request), model=request.envelope.model)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return await self._rules.count_tokens(request)

    async def aclose(self) -> None:
        await self._rules.aclose()


def with_faults(inner: Provider, faults: str = FAULTS, seed: str = "1") -> Provider:
    """Return a provider some of whose answers fail."""
    return FaultyProvider(inner, Faults.parse(faults), seed)


def rules() -> RulesProvider:
    """Return the shipped rules as a provider."""
    return RulesProvider(trading.RULES)


@dataclass(frozen=True, slots=True)
class Evening:
    """A session that was played in memory, and what it left."""

    store: InteractionStore
    played: SessionResult = field(default_factory=SessionResult)
    log: list[bytes] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """The digest that a folder's decision log would have."""
        return sha256(b"".join(line + b"\n" for line in self.log)).hexdigest()

    @property
    def lines(self) -> list[Line]:
        """The decision log as objects."""
        return lines_of(b"\n".join(self.log))

    async def records(self) -> list[Record]:
        """Return every record, in the log's order."""
        return [entry.record async for entry in self.store.scan()]


def stage(provider: Provider | None = None, **changes: Any) -> SessionSetup:
    """Return what a session over both samples is played with; `changes` are its fields, or mode, workers, tables, store, ledger."""
    bars: Mapping[str, Sequence[Bar]] = changes.pop("bars", MappingProxyType(LOADED))
    mode = changes.pop("mode", "backtest")
    llm, model = changes.pop("model", (LLMProvider.RULES, trading.RULES_MODEL))
    feeds = [trading.bars_feed(each, symbol=each[0].symbol, name=name) for name, each in bars.items()]
    fields: dict[str, Any] = {
        "session_id": "evening",
        "symbols": [feed.symbol for feed in feeds],
        "feeds": feeds,
        "most_bars": BARS,
        "answers": trading.AnswerSource(Providers.every(provider or rules()), llm, model),
        "config": PlatformConfig(mode=mode, concurrency=changes.pop("workers", 4)),
        "ports": Ports(
            tables=changes.pop("tables", TABLES),
            store=changes.pop("store", None) or MemoryInteractionStore(),
            ledger=changes.pop("ledger", None) or port_adapters.budget_ledger(10**12),
        ),
        "clock": trading.clock_for(mode),
    }
    return SessionSetup(**{**fields, **changes})


def store_of(set_up: SessionSetup) -> InteractionStore:
    """Return the log of a session in memory."""
    assert set_up.ports.store is not None
    return set_up.ports.store


async def evening(provider: Provider | None = None, **changes: Any) -> Evening:
    """Play a session in memory; `changes` are fields of `Stage`, `bars` by name, or `model`."""
    set_up = stage(provider, **changes)
    played = Evening(store_of(set_up))

    async def after_moment(_moment: TimeSlice, lines: Sequence[bytes]) -> None:
        played.log.extend(lines)

    def on_start(_session: TradingSession) -> None:
        played.played.baselines = trading.baselines(played.played.instruments)

    await play_session(set_up, played.played, SessionObserver(after_moment, on_start=on_start))
    return played
