"""Sessions whose budgets other processes watch and change: answers that wait, prices for rules, commands from outside."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from agentic_trading.clock import SystemClock
from agentic_trading.desk.session.session_run import SessionObserver, play_session
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.governance.commands import OperatorCommand
from agentic_trading.governance.controls_document import ControlStore, TenantControls
from agentic_trading.llm.envelope import DEFAULT_TENANT
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import RulesProvider
from agentic_trading.operate.budgets import BudgetLocationOptions, execute
from agentic_trading.platform.config import LedgerConfig
from agentic_trading.platform.port_adapters import boards_of
from tests.flows.sessions import PRICED, Evening, Priced, stage, store_of

ROOT: Final = Path(__file__).parents[2]
REHEARSAL: Final = {
    "name": "rehearsal",
    "rows": [
        {
            "provider": "rules",
            "model": "rules-1",
            "valid_from": "2000-01-01",
            "input": 2000,
            "output": 10000,
            "cache_read": 200,
            "cache_write_5m": 2500,
            "cache_write_1h": 4000,
            "source": "invented, to rehearse",
            "checked_on": "2026-11-22",
        }
    ],
}
"""A book in which the rules have a price, so that a budget runs out without a provider."""


def rehearsal(folder: Path) -> Path:
    """Write the book of a rehearsal into a folder."""
    path = folder / "prices.json"
    path.write_bytes(orjson.dumps(REHEARSAL))
    return path


class Waiting:
    """Has the rules keep the calls with these numbers (from 1) until they are let go, or cancelled."""

    def __init__(self, patch: pytest.MonkeyPatch, *numbers: int) -> None:
        self.begun = 0
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.cancelled_at: datetime | None = None
        self._numbers = numbers
        answer = RulesProvider.complete

        async def complete(rules: RulesProvider, request: ModelRequest) -> ModelResponse:
            await self._waited()
            return await answer(rules, request)

        patch.setattr(RulesProvider, "complete", complete)

    async def _waited(self) -> None:
        self.begun += 1
        if self.begun in self._numbers:
            self.is_asked.set()
            try:
                await self.may_answer.wait()
            except asyncio.CancelledError:
                self.cancelled_at = SystemClock().now()
                raise


class Obeyed:
    """A board that can tell when a worker has done what was ordered: it looks again only then."""

    def __init__(self, board: ControlStore) -> None:
        self._board = board
        self._shown = 0
        self._done = 0
        self._has_looked = asyncio.Condition()

    async def read(self, tenant: str) -> TenantControls:
        if tenant == DEFAULT_TENANT:
            async with self._has_looked:
                self._done = self._shown
                self._has_looked.notify_all()
        controls = await self._board.read(tenant)
        if tenant == DEFAULT_TENANT:
            self._shown = controls.version
        return controls

    async def replace(self, tenant: str, controls: TenantControls) -> bool:
        return await self._board.replace(tenant, controls)

    async def now(self) -> datetime:
        return await self._board.now()

    async def aclose(self) -> None:
        await self._board.aclose()

    async def followed(self, version: int) -> None:
        """Wait until a worker has followed this version of the orders."""
        async with self._has_looked:
            await self._has_looked.wait_for(lambda: self._done >= version)


@dataclass(slots=True)
class Overseen:
    """A session in memory whose orders stand at `place`; `at_moment` has something done before a moment (from 1)."""

    place: BudgetLocationOptions
    at_moment: Mapping[int, Callable[["Overseen"], Awaitable[None]]]
    changes: Mapping[str, Any] = field(default_factory=dict)
    board: Obeyed = field(init=False)
    evening: Evening = field(init=False)

    async def play(self) -> Evening:
        """Play it to its end."""
        folder = self.place.folder or Path()
        controls, statuses = await asyncio.to_thread(boards_of, self.place.ledger_url, folder)
        self.board = Obeyed(controls)
        fields = {"model": PRICED, "most_bars": 420, **self.changes}
        plain = stage(Priced(), **fields)
        ledger_config = LedgerConfig(url=self.place.ledger_url)
        config = plain.config.model_copy(update={"ledger": ledger_config})
        set_up = replace(
            plain, config=config, ports=replace(plain.ports, controls=self.board, statuses=statuses)
        )
        self.evening = Evening(store_of(set_up))
        numbers = count(1)

        async def before_moment(_moment: TimeSlice) -> None:
            if (act := self.at_moment.get(next(numbers))) is not None:
                await act(self)

        async def after_moment(_moment: TimeSlice, lines: Sequence[bytes]) -> None:
            self.evening.log.extend(lines)

        ledger = set_up.ports.ledger
        assert ledger is not None
        async with aclosing(self.board), aclosing(statuses), aclosing(ledger):
            await play_session(set_up, self.evening.played, SessionObserver(after_moment, before_moment))
        return self.evening

    async def order(self, wanted: OperatorCommand) -> None:
        """Give an order as an operator does, and wait until it is followed."""
        there = await execute(self.place, DEFAULT_TENANT, wanted, "")
        await self.board.followed(there.version)


async def agentic_trading(*words: object) -> str:
    """Run a command in a process of its own, and return what it printed."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from agentic_trading.cli.main import main; main()",
        *map(str, words),
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await child.communicate()
    assert child.returncode == 0, err.decode()
    return out.decode()
