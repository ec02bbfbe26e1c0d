"""The contract suite of agents."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from agentic_trading.desk.agents.agent import Agent
from agentic_trading.desk.agents.errors import AgentFailedError
from agentic_trading.desk.session.agents import OwnAgent
from agentic_trading.desk.session.options import RunOptions
from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.report import RunReport
from agentic_trading.desk.session.run import run_session
from agentic_trading.operate.session_folder import SessionFolder
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.testing.suite import BrokenContractError, Suite, require


@dataclass(frozen=True, slots=True)
class _Played:
    """A run and its decision log."""

    report: RunReport
    decisions: tuple[bytes, ...]


class AgentSuite(Suite):
    """The promises of an agent: equal runs, equal replays, no look-ahead. Set `agent`.

    Each test plays sessions of its own in a temporary folder, with the answers of `Agent.offline`.

    Attributes:
        agent: The class.
        config: Its configuration.
        data: The samples or CSV files to trade.
        bars: The maximum number of bars of each symbol. None for all.

    Example:
        class TestBreakout(AgentSuite):
            agent = Breakout
            config = {"lookback": 10}

    """

    agent: type[Agent]
    config: Mapping[str, Any] = MappingProxyType({})
    data: tuple[str, ...] = ("btcusdt-5m",)
    bars: int | None = None
    timeout_s: float = 60

    def test_agent_decides(self) -> None:
        """The other tests would prove little about an agent without a decision."""

        async def check(folder: Path) -> None:
            played = await self._play(folder)
            require("an agent decides within the bars", "no decision", kept=bool(played.decisions))

        self._run(check)

    def test_equal_runs_decide_equally(self) -> None:
        """An agent depends on its desk only, and not on a clock or on chance."""

        async def check(folder: Path) -> None:
            first, second = await self._play(folder / "first"), await self._play(folder / "second")
            _require_same("equal runs decide equally", first.decisions, second.decisions)

        self._run(check)

    def test_replay_is_identical_with_1_and_8_workers(self) -> None:
        """The order of answers has no effect, also if calls have failed."""

        async def check(folder: Path) -> None:
            await self._play(folder, inject="malformed=30%,timeout=15%,refusal=15%")
            for workers in (1, 8):
                report = await replay(folder, workers=workers, agent=self._own())
                require(
                    f"a replay with {workers} workers is identical, byte for byte",
                    report.first_difference or f"{report.misses} calls without a recorded answer",
                    kept=report.identical,
                )

        self._run(check)

    def test_later_bars_have_no_effect(self) -> None:
        """A run that ends earlier has decided equally until then."""

        async def check(folder: Path) -> None:
            whole = await self._play(folder / "whole")
            most = max(source.bars for source in whole.report.data)
            for part in (most // 2, most * 3 // 4):
                if part:
                    short = await self._play(folder / str(part), bars=part)
                    same = whole.decisions[: len(short.decisions)]
                    _require_same("later bars have no effect on a decision", same, short.decisions)

        self._run(check)

    def test_failed_calls_are_handled(self) -> None:
        """Without answers, an agent still runs to the end."""

        async def check(folder: Path) -> None:
            await self._play(folder, inject="timeout=100%")

        self._run(check)

    def _run(self, check: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
        with TemporaryDirectory(prefix="agent-suite-") as folder:
            self.run_check(check(Path(folder)))

    def _own(self) -> OwnAgent:
        made = getattr(self, "agent", None)
        if not (isinstance(made, type) and issubclass(made, Agent)):
            raise TypeError("set `agent`: the class of your agent, a subclass of Agent")
        return OwnAgent(f"{made.__module__}:{made.__qualname__}", made, dict(self.config), "")

    async def _play(self, folder: Path, *, inject: str = "", bars: int | None = None) -> _Played:
        options = RunOptions(
            config=PlatformConfig(mode="backtest"),
            provider="rules",
            data=self.data,
            out=folder,
            bars=bars or self.bars,
            inject=inject,
            agent=self._own(),
        )
        try:
            report = await run_session(options, on_progress=lambda _progress: None)
        except AgentFailedError as e:
            raise BrokenContractError("an agent handles every bar, fill and answer", e) from e
        log = await asyncio.to_thread(SessionFolder(folder).decisions(1).read_bytes)
        return _Played(report, tuple(log.splitlines()))


def _require_same(promise: str, expected: Sequence[bytes], found: Sequence[bytes]) -> None:
    """Require equal decision logs, and name the first line that differs."""
    for number, (before, now) in enumerate(zip_longest(expected, found, fillvalue=b"no line"), 1):
        found_text = f"line {number} is {now.decode()} instead of {before.decode()}"
        require(promise, found_text, kept=before == now)
