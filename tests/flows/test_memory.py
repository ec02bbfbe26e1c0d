"""A long session keeps counts and not lists: later on in it there are no more bars or attempts in memory than before."""

import gc
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from itertools import count
from pathlib import Path

import pytest
from typing_extensions import override

from agentic_trading.desk.agents import history
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.market.samples import load_sample
from agentic_trading.desk.session.kept_bars import bar_row
from agentic_trading.desk.session.options import RunOptions
from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.report import RunProgress
from agentic_trading.desk.session.report_builder import report_of
from agentic_trading.desk.session.run import run_session
from agentic_trading.desk.session.session_run import SessionResult
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import LogEntry
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.operate.session_folder import SessionFolder
from tests.build import interaction
from tests.flows.sessions import TABLES
from tests.operate.test_session_folder import manifest

BARS = 700
EARLY = 400
"""From here on the windows of all timeframes that a decision looks at are full or nearly so."""


LOOKS_A_REPLAY = 5
"""In a replay it is looked at every so many calls: a look goes through all objects of the process."""


def alive(*kinds: type) -> list[int]:
    """Return how many objects of each kind are in memory."""
    gc.collect()
    types = Counter(map(type, gc.get_objects()))
    return [types[kind] for kind in kinds]


@pytest.fixture(scope="module")
def sample() -> Sequence[Bar]:
    return load_sample("btcusdt-5m")[:BARS]


@pytest.fixture
def options(sample: Sequence[Bar], tmp_path: Path) -> RunOptions:
    """Return a run over a file of bars: what is read of it is not in memory already."""
    path = tmp_path / "BARS.csv"
    path.write_text("".join(f"{bar_row(bar)}\n" for bar in sample))
    return RunOptions(data=(f"XRPUSDT={path}",), out=tmp_path / "session")


async def test_session_and_replay_keep_bounded_objects(
    options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The history of an agent has a limit of its own, which this session would not reach.
    monkeypatch.setattr(history, "BARS_KEPT", EARLY // 2)
    before, attempts_before = alive(Bar, LLMInteraction)
    numbers = count()
    played: dict[int, int] = {}
    replayed: list[tuple[int, int]] = []

    def progressed(progress: RunProgress) -> None:
        if progress.bars_done in {EARLY, BARS}:
            (now,) = alive(Bar)
            played[progress.bars_done] = now - before

    def asked(envelope: LLMEnvelope) -> LLMEnvelope:
        if next(numbers) % LOOKS_A_REPLAY == 0:
            bars, attempts = alive(Bar, LLMInteraction)
            replayed.append((bars - before, attempts - attempts_before))
        return envelope

    report = await run_session(options, on_progress=progressed)
    again = await replay(options.out, edit=asked)

    assert again.identical
    assert report.attempts > 10
    assert played[BARS] - played[EARLY] < 50
    assert len(replayed) > 2
    assert max(bars for bars, _ in replayed) < EARLY
    assert max(attempts for _, attempts in replayed) < 10


class WatchedStore(MemoryInteractionStore):
    """Counts the interactions that are alive when all of them have been read."""

    alive_at_the_end = 0

    @override
    async def scan(self, after: int = 0) -> AsyncGenerator[LogEntry]:
        async for entry in super().scan(after):
            yield entry
        (self.alive_at_the_end,) = alive(LLMInteraction)


async def test_report_keeps_no_attempts() -> None:
    store = WatchedStore()
    (before,) = alive(LLMInteraction)
    for _ in range(50):
        await store.store(interaction())

    report = await report_of(
        manifest(), SessionFolder(Path("out")), SessionResult(), store, TABLES, elapsed_s=1
    )

    assert report.attempts == 50
    assert store.alive_at_the_end - before < 5
