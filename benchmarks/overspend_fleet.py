"""Processes that spend one budget: calls are dealt to them, some twice; some are killed, and so is the server."""

import asyncio
import json
import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from benchmarks.peers.contender import LEAN, ROOT, UnavailableError
from benchmarks.peers.load import Load
from benchmarks.peers.spending import WORKERS, Opening, Told
from tests.redis_server import RealServer

PROCESSES = 4
READY_S = 120.0
ENDS_WITHIN_S = 10.0


@dataclass(frozen=True)
class Plan:
    """One run: `calls` of a load on a budget, and what goes wrong meanwhile."""

    opening: Opening
    load: Load
    calls: int
    kills: Sequence[int] = ()
    """A process is killed when so many calls have been answered."""
    restarts: Sequence[int] = ()
    """The server is killed and started when so many calls have been answered."""
    twice: frozenset[int] = frozenset()
    """Calls that are delivered to two processes."""


@dataclass
class Ran:
    """What came of a run."""

    told: list[Told] = field(default_factory=list)
    hit: int = 0
    kills: int = 0
    restarts: int = 0
    seconds: float = 0.0

    @property
    def answers(self) -> dict[int, Told]:
        """The answer to each call; of two deliveries the one that made it."""
        found: dict[int, Told] = {}
        for told in self.told:
            if told.call not in found or found[told.call].outcome == "taken":
                found[told.call] = told
        return found


class Spender:
    """One process that makes calls."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._command = command
        self.dealt: list[int] = []
        self.is_killed = False

    async def start(self, opening: Opening | None = None) -> None:
        """Start it, and open a purse; raises `UnavailableError` where it breaks."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=ROOT,
            env={**os.environ, **LEAN},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._errors,
            limit=2**20,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        await self._ready()
        if opening is not None:
            await self.open(opening)

    async def open(self, opening: Opening) -> None:
        """Open a purse."""
        self._say(asdict(opening))
        await self._ready()

    def deal(self, call: int) -> None:
        """Have a call made."""
        self.dealt.append(call)
        self._say({"call": call})

    async def told(self) -> Told | None:
        """Return the next answer; None when the process has ended."""
        line = await self._output.readline()
        return Told(**json.loads(line)) if line.endswith(b"\n") else None

    async def kill(self) -> None:
        """End it as nothing can prevent."""
        self.is_killed = True
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    def successor(self) -> "Spender":
        """Return one that is to take its place."""
        return Spender(self._command)

    def last_words(self) -> str:
        """Return the last line that it has written about itself."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]

    async def end(self) -> None:
        """Let it end."""
        if self._process.returncode is None:
            self._input.close()
            try:
                async with asyncio.timeout(ENDS_WITHIN_S):
                    await self._process.wait()
            except TimeoutError:
                await self.kill()
        self._errors.close()

    def _say(self, what: dict[str, object]) -> None:
        with suppress(ConnectionError):
            self._input.write(json.dumps(what).encode() + b"\n")

    async def _ready(self) -> None:
        line = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                line = await self._output.readline()
        if not line:
            await self.kill()
            raise UnavailableError(f"it broke: {self.last_words():.120}")


class Fleet:
    """All the processes of one contender."""

    def __init__(self, command: Sequence[str | Path], server: RealServer | None = None) -> None:
        self._command = command
        self._server = server
        self._spenders: list[Spender] = []

    async def __aenter__(self) -> Self:
        """Start; raises `UnavailableError` where a process breaks."""
        try:
            for _ in range(PROCESSES):
                self._spenders.append(Spender(self._command))
                await self._spenders[-1].start()
        except UnavailableError:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def run(self, plan: Plan) -> Ran:
        """Have every call answered."""
        for spender in self._spenders:
            await spender.open(plan.opening)
        return await _Run(plan, self._spenders, self._server).to_the_end()

    async def _end(self) -> None:
        for spender in self._spenders:
            await spender.end()


class _Run:
    """One run: calls that are dealt, answers that come in, and what is done to the processes and the server."""

    def __init__(self, plan: Plan, spenders: list[Spender], server: RealServer | None) -> None:
        self._plan = plan
        self._spenders = spenders
        self._server = server
        self._calls = deque(range(plan.calls))
        self._seconds: list[deque[int]] = [deque() for _ in spenders]
        self._dealt_twice: set[int] = set()
        self._left = plan.calls + len(plan.twice)
        self._kills = deque(sorted(plan.kills))
        self._restarts = deque(sorted(plan.restarts))
        self._random = Random(plan.opening.run)  # noqa: S311 - no secret
        self._inbox: asyncio.Queue[tuple[int, Told | None]] = asyncio.Queue()
        self._ran = Ran()
        self._restarting = asyncio.Lock()

    async def to_the_end(self) -> Ran:
        """Return when every call has its answer, and every process that was killed its successor."""
        started = time.perf_counter()
        async with asyncio.TaskGroup() as trouble, asyncio.TaskGroup() as readers:
            reading = [readers.create_task(self._read(place)) for place in range(len(self._spenders))]
            self._deal()
            while self._left:
                place, told = await self._inbox.get()
                if told is None:
                    await self._bury(place)
                    await self._spenders[place].start(self._plan.opening)
                    reading.append(readers.create_task(self._read(place)))
                else:
                    self._take(place, told)
                self._make_trouble(trouble)
                self._deal()
            for task in reading:
                task.cancel()
        self._ran.seconds = time.perf_counter() - started
        return self._ran

    async def _read(self, place: int) -> None:
        spender = self._spenders[place]
        while (told := await spender.told()) is not None:
            self._inbox.put_nowait((place, told))
        self._inbox.put_nowait((place, None))

    def _take(self, place: int, told: Told) -> None:
        self._spenders[place].dealt.remove(told.call)
        self._left -= 1
        self._ran.told.append(told)

    async def _bury(self, place: int) -> None:
        """Put another process in the place of one that has ended; its calls are delivered again."""
        ended = self._spenders[place]
        if not ended.is_killed:
            raise UnavailableError(f"it broke: {ended.last_words():.120}")
        self._ran.hit += len(ended.dealt)
        self._calls.extendleft(ended.dealt)
        self._spenders[place] = ended.successor()
        await ended.end()

    def _deal(self) -> None:
        """Give every process as many calls as it makes at once; some are given to the next one, too."""
        for place, spender in enumerate(self._spenders):
            while not spender.is_killed and len(spender.dealt) < WORKERS:
                if self._seconds[place]:
                    spender.deal(self._seconds[place].popleft())
                elif self._calls:
                    call = self._calls.popleft()
                    spender.deal(call)
                    if call in self._plan.twice and call not in self._dealt_twice:
                        self._dealt_twice.add(call)
                        self._deliver_again(call, (place + 1) % len(self._spenders))
                else:
                    break

    def _deliver_again(self, call: int, place: int) -> None:
        if self._spenders[place].is_killed:
            self._seconds[place].append(call)
        else:
            self._spenders[place].deal(call)

    def _make_trouble(self, group: asyncio.TaskGroup) -> None:
        answered = len(self._ran.told)
        if self._kills and answered >= self._kills[0]:
            self._kills.popleft()
            group.create_task(self._kill())
        if self._restarts and answered >= self._restarts[0]:
            self._restarts.popleft()
            group.create_task(self._restart())

    async def _kill(self) -> None:
        """Kill a process that is busy, at a moment that it cannot know."""
        await asyncio.sleep(self._random.random() / 50)
        busiest = max(self._spenders, key=lambda spender: 0 if spender.is_killed else len(spender.dealt))
        if busiest.dealt and not busiest.is_killed:
            self._ran.kills += 1
            await busiest.kill()

    async def _restart(self) -> None:
        assert self._server is not None
        await asyncio.sleep(self._random.random() / 50)
        # One after the other, because two starts at once would leave a server behind.
        async with self._restarting:
            self._server.kill()
            self._ran.restarts += 1
            await asyncio.sleep(self._random.random() / 5)
            await asyncio.to_thread(self._server.start)
