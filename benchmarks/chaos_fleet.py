"""Worker processes and servers of `chaos.py`, and what is done to them: killed, frozen, stopped, started again."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from benchmarks.chaos_place import PROGRAM, Place
from benchmarks.peers.contender import ROOT

NAMES = ("w1", "w2", "w3", "w4")
ENDS_WITHIN_S = 40.0
NOTICED_WITHIN_S = 30.0
OPERATOR_S = 2.0
"""How long after the alarm the operator rebuilds the ledger; until then nothing may be sent."""

_ROLLED_BACK = "rolled_back"
_UNKEPT = re.compile(r"answer_not_kept\b.*?envelope_id\W+(?:\d*m)?([0-9a-f-]{36})")

_SAID = re.compile(r"\b(warning|error)\s*\]\s*(?:\x1b\[\d+m)*([a-z_]+)|^(Traceback)", re.MULTILINE)


@dataclass(frozen=True)
class Size:
    """How many envelopes, how fast, and what goes wrong when, in seconds from the first envelope on."""

    envelopes: int
    a_second: float
    kill_every_s: float
    redis_down_at: tuple[float, float]
    bus_down_at: float
    bus_down_s: float
    freeze_at: Sequence[float]
    freeze_s: float


FULL = Size(5_000, 40.0, 4.0, (15.0, 95.0), 30.0, 30.0, (20.0, 75.0), 18.0)
QUICK = Size(800, 55.0, 3.0, (3.0, 11.0), 5.0, 5.0, (1.0,), 16.0)


@dataclass
class Worker:
    """One worker process after the other, of one name and log."""

    name: str
    place: Place
    frozen: bool = False
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def said(self) -> Path:
        """What they have printed."""
        return self.place.logs / f"{self.name}.said"

    def start(self) -> None:
        """Start the next one."""
        where = ["--config", str(self.place.config), "--name", self.name, "--store", str(self.place.logs)]
        with self.said.open("ab") as file:
            self.process = subprocess.Popen(  # noqa: S603 - our own command
                [str(PROGRAM), "worker", *where, "--http", "127.0.0.1:0"],
                stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": str(ROOT), "STUB_API_KEY": "k"},
            )  # fmt: skip

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    async def ended(self, within_s: float) -> int | None:
        """Wait for its end; return its exit code, None if it goes on."""
        assert self.process is not None
        try:
            return await asyncio.to_thread(self.process.wait, within_s)
        except subprocess.TimeoutExpired:
            return None


@dataclass
class Fleet:
    """All workers, and what was done to them.

    With `before_loss` a folder is deleted, after that was called with its worker's name. With `sets_back` the second outage
    of the Redis puts the files of the first one in its place.
    """

    place: Place
    before_loss: Callable[[str], None] | None = None
    sets_back: bool = False
    random: Random = field(default_factory=lambda: Random(7))  # noqa: S311 - no secret
    workers: list[Worker] = field(init=False)
    done: Counter[str] = field(default_factory=Counter)
    died: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workers = [Worker(name, self.place) for name in NAMES]

    @contextmanager
    def running(self) -> Generator[None]:
        """Have all of them run for as long as the block lasts."""
        try:
            for worker in self.workers:
                worker.start()
            yield
        finally:
            for worker in self.workers:
                worker.send(signal.SIGKILL)
                if worker.process is not None:
                    worker.process.wait()

    async def serving(self, within_s: float = 60.0) -> None:
        """Wait until each of them serves."""
        async with asyncio.timeout(within_s):
            while not all(b" serves " in worker.said.read_bytes() for worker in self.workers):  # noqa: ASYNC110 - of processes
                await asyncio.sleep(0.1)

    async def suffer(self, size: Size) -> None:
        """Do what a run is about; return when everything runs again."""
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(self._freeze(at, size.freeze_s)) for at in size.freeze_at]
            if self.sets_back:
                ends.append(group.create_task(self._redis_set_back(*size.redis_down_at)))
            else:
                ends += [group.create_task(self._redis_down(at)) for at in size.redis_down_at]
            ends.append(group.create_task(self._bus_down(size.bus_down_at, size.bus_down_s)))
            if self.before_loss is not None:
                at = max(size.bus_down_at + size.bus_down_s, size.envelopes / size.a_second / 2) + 1.0
                ends.append(group.create_task(self._lose_folder(at)))
            kills = group.create_task(self._kill_again_and_again(size.kill_every_s))
            watching = group.create_task(self._watch())
            await asyncio.sleep(size.envelopes / size.a_second)
            await asyncio.wait(ends)
            kills.cancel()
            watching.cancel()
        for worker in self.workers:
            if worker.process is None or worker.process.poll() is not None:
                worker.start()

    async def end(self) -> list[int]:
        """Stop them in good order; return how each ended, -9 for one that had to be killed."""
        for worker in self.workers:
            worker.send(signal.SIGTERM)
        codes = [await worker.ended(ENDS_WITHIN_S) for worker in self.workers]
        return [-9 if code is None else code for code in codes]

    def unkept(self) -> frozenset[str]:
        """Return the envelopes of which a worker has said that an answer could not be kept."""
        texts = (worker.said.read_text("utf-8", "replace") for worker in self.workers)
        return frozenset(match for text in texts for match in _UNKEPT.findall(text))

    def warnings(self) -> Counter[str]:
        """Return what the workers have warned of, and how often."""
        found: Counter[str] = Counter()
        for worker in self.workers:
            text = worker.said.read_text("utf-8", "replace")
            found.update(match[2] or match[3] for match in _SAID.finditer(text))
        return found

    async def _kill_again_and_again(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            able = [each for each in self.workers if not each.frozen and each.process is not None]
            worker = self.random.choice(able)
            await asyncio.sleep(self.random.random() / 5)
            process, worker.process = worker.process, None
            if process is None or process.poll() is not None:
                worker.process = process
                continue
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
            self.done["kill -9"] += 1
            worker.start()

    async def _lose_folder(self, at: float) -> None:
        await asyncio.sleep(at)
        worker = next(each for each in self.workers if not each.frozen and each.process is not None)
        process, worker.process = worker.process, None
        assert process is not None
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        if self.before_loss is not None:
            await asyncio.to_thread(self.before_loss, worker.name)
        await asyncio.to_thread(shutil.rmtree, worker.place.logs / worker.name)
        self.done["folder deleted"] += 1
        worker.start()

    async def _watch(self) -> None:
        """Start again what has ended by itself, and note it."""
        while True:
            await asyncio.sleep(0.2)
            for worker in self.workers:
                code = worker.process.poll() if worker.process is not None else None
                if code is not None:
                    tail = worker.said.read_text("utf-8", "replace").strip().splitlines()[-1:]
                    self.died.append(f"{worker.name} ended by itself with {code}: {' '.join(tail)[:300]}")
                    worker.start()

    async def _freeze(self, at: float, seconds: float) -> None:
        await asyncio.sleep(at)
        worker = self.random.choice([each for each in self.workers if not each.frozen])
        worker.frozen = True
        worker.send(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        worker.send(signal.SIGCONT)
        worker.frozen = False
        self.done[f"freeze of {seconds:g} s"] += 1

    async def _redis_down(self, at: float) -> None:
        await asyncio.sleep(at)
        await asyncio.to_thread(self.place.redis.daemon.kill)
        await asyncio.sleep(1.0)
        await asyncio.to_thread(self.place.redis.start)
        self.done["Redis killed"] += 1

    async def _redis_set_back(self, copied_at: float, set_back_at: float) -> None:
        """Keep the Redis' files in one outage, and put them back in another; once a worker says so, rebuild the ledger."""
        await asyncio.sleep(copied_at)
        await asyncio.to_thread(self.place.redis.daemon.kill)
        await asyncio.to_thread(self.place.copy_redis)
        await asyncio.to_thread(self.place.redis.start)
        await asyncio.sleep(set_back_at - copied_at)
        await asyncio.to_thread(self.place.redis.daemon.kill)
        await asyncio.to_thread(self.place.set_redis_back)
        await asyncio.to_thread(self.place.redis.start)
        begin = time.monotonic()
        while not any(_ROLLED_BACK in worker.said.read_text("utf-8", "replace") for worker in self.workers):
            if time.monotonic() > begin + NOTICED_WITHIN_S:
                self.died.append(f"no worker said within {NOTICED_WITHIN_S:g} s that its Redis was set back")
                break
            await asyncio.sleep(0.1)
        noticed_s = time.monotonic() - begin
        await asyncio.sleep(OPERATOR_S)
        code, said = await self.place.rebuild()
        if code:
            self.died.append(f"budget rebuild ended with {code}: {said[:300]}")
        self.done[
            f"Redis set back by {set_back_at - copied_at:g} s, noticed after {noticed_s:.1f} s and rebuilt"
        ] += 1

    async def _bus_down(self, at: float, seconds: float) -> None:
        await asyncio.sleep(at)
        await asyncio.to_thread(self.place.bus.daemon.kill)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.place.bus.start)
        self.done[f"{self.place.bus_name} away for {seconds:g} s"] += 1
