"""The sender of a month of paper trading, and the program to which it sends."""

import fcntl
import json
import os
import random
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

from agentic_trading.cli.exits import ExitCode
from agentic_trading.desk.session.kept_bars import BAR_COLUMNS
from agentic_trading.operate.session_folder import SessionFolder
from benchmarks.long_session import cpu_of, resident_mb
from benchmarks.paper_month_plan import MINUTE, START, SYMBOLS, Market, Plan, Stop
from benchmarks.paper_month_program import SharedTime
from benchmarks.peers.contender import ROOT

GRACE = timedelta(seconds=20)
SOON = timedelta(seconds=1)
"""The time from the close of a bar to its row."""
HANG_S = 600.0
"""A time slice that takes longer has hung."""
START_HANG_S = 3_600.0
"""The same for the first time slice of a start, because a resumed run plays its bars again, slowly on a busy machine."""
POLL_S = 0.0002
STARTING_S = 0.05
SETTLE_S = 0.001
LONGEST_KILL_S = 0.004
"""A time slice takes about this long, so that kills hit each part of it."""
SENT_AGAIN = 3
"""The minutes that a sender sends again after a restart, because it does not know if they were traded."""
SAMPLES = 200
AGENT = "examples.breakout:Breakout"
AGENT_CONFIG = 'timeframe = "5m"\nlookback = 6\n'
HEADER = "symbol,open_time,open,high,low,close,volume\n"
MB = 1024 * 1024

Rows = Mapping[str, str]


class ProgramError(Exception):
    """The program gave no time slice that was due, gave one too early, or ended."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The program after a number of minutes."""

    minute: int
    start: int
    mb: float
    descriptors: int
    threads: int
    folder_mb: float


class KeptRows:
    """The bars in the file of a symbol. The program adds them before it trades them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._cut = b""
        self.times: list[datetime] = []

    def close(self) -> None:
        """Read from the start of the file at the next read. A new start of the program writes the file again."""
        if self._file is not None:
            self._file.close()
        self._file, self._cut, self.times = None, b"", []

    def read(self) -> int:
        """Read the rows that were added, and return the number of all bars."""
        if self._file is None:
            if not self._path.exists():
                return 0
            self._file = self._path.open("rb")
        if text := self._file.read():
            *rows, self._cut = (self._cut + text).split(b"\n")
            times = (row.partition(b",")[0].decode() for row in rows)
            self.times += [datetime.fromisoformat(each) for each in times if each != BAR_COLUMNS[0]]
        return len(self.times)


class Session:
    """The program in a process of its own, and its sender.

    The sender moves the clock of the program, and waits for each time slice that is due before it moves on. So the
    time slices are the same in each run, at any speed of the machine.

    Attributes:
        out: The folder of the session.
        expected: The open times of the bars that the session must have, by symbol.
        noted: The late and repeated bars since the last start, by symbol and kind.
        waits_s: The real time from the moment at which a time slice was due until it came.
        starts_s: The real time from each start to its first time slice.
        samples: The process on its way.
        ends: What each start noted that ended without a kill, next to its report.
        cpu_s: The CPU of all starts.

    """

    def __init__(self, plan: Plan, seed: int, folder: Path) -> None:
        self._plan = plan
        self._market = Market(seed)
        self._dice = random.Random(seed)  # noqa: S311 - the moments of kills, not secrets
        self._folder = folder
        self.out = folder / "session"
        self._time = SharedTime(folder / "time")
        self._kept = {symbol: KeptRows(SessionFolder(self.out).bars(1, symbol)) for symbol in SYMBOLS}
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at: float | None = None
        self.expected: dict[str, list[datetime]] = {symbol: [] for symbol in SYMBOLS}
        self.noted: dict[str, Counter[str]] = {}
        self.waits_s: list[float] = []
        self.starts_s: list[float] = []
        self.samples: list[Sample] = []
        self.ends: list[tuple[dict[str, Counter[str]], dict[str, Any]]] = []
        self.cpu_s = 0.0

    def play(self) -> None:
        """Send the month. Raises `ProgramError`."""
        (self._folder / "agent.toml").write_text(AGENT_CONFIG, encoding="utf-8")
        self._start()
        every = max(1, self._plan.minutes // SAMPLES)
        sent: list[Rows] = []
        backlog: list[tuple[int, Rows]] = []
        try:
            for minute in range(self._plan.minutes):
                rows = self._market.rows(minute)
                sent = [*sent[1 - SENT_AGAIN :], rows]
                self._time.set(_close(minute) + SOON)
                if any(minute in span for span in self._plan.backlogs):
                    backlog.append((minute, rows))
                    continue
                if minute in self._plan.stops:
                    self._stop(minute, self._plan.stops[minute], sent)
                    continue
                self._send(*(row for _, late in backlog for row in late.values()))
                for earlier, _ in backlog:
                    self._await(earlier, SYMBOLS)
                backlog.clear()
                self._minute(minute, rows)
                if minute % every == 0:
                    self._sample(minute)
            self._end(signal.SIGTERM, is_last=True)
        finally:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            for kept in self._kept.values():
                kept.close()

    def _minute(self, minute: int, rows: Rows) -> None:
        """Send the bars of a minute, and wait for their time slice."""
        symbols = self._plan.sent(minute)
        if not symbols:
            return
        self._send(*(rows[symbol] for symbol in symbols))
        if len(symbols) < len(SYMBOLS):
            self._settle(minute)
            # The grace period begins when the program asks for the bar, at the latest at the time of the row.
            self._time.set(_close(minute) + SOON + GRACE)
        self._await(minute, symbols)
        if (late := self._plan.late.get(minute)) is not None:
            self._send(rows[late])
            self.noted[late]["late"] += 1
        if (repeated := self._plan.repeated.get(minute)) is not None:
            self._send(rows[repeated])
            self.noted[repeated]["duplicates"] += 1

    def _start(self) -> None:
        command = [
            *(sys.executable, "-m", "benchmarks.paper_month_program", str(self._folder / "time")),
            *("run", "--mode", "paper", "--data", ",".join(f"{each}=-" for each in SYMBOLS)),
            *("--timeframe", "1m", "--provider", "rules", "--grace", f"{GRACE.seconds}s"),
            *("--agent", AGENT, "--agent-config", str(self._folder / "agent.toml")),
            *("--out", str(self.out), "--auto-resume", "--yes", "--json"),
        ]
        streams = [(self._folder / name).open("wb") for name in ("report.json", "errors.txt")]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(  # noqa: S603 - ours
            command, stdin=subprocess.PIPE, stdout=streams[0], stderr=streams[1], cwd=ROOT, env=env
        )
        for stream in streams:
            stream.close()
        for kept in self._kept.values():
            kept.close()
        self.noted = {symbol: Counter() for symbol in SYMBOLS}
        self._started_at = time.monotonic()
        self._send(HEADER)

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _send(self, *rows: str) -> None:
        stdin = self._running.stdin
        assert stdin is not None
        try:
            stdin.write("".join(rows).encode())
            stdin.flush()
        except BrokenPipeError:
            raise ProgramError(f"the program has ended: {self._errors()}") from None

    def _settle(self, minute: int) -> None:
        """Wait until the program has read its input. Raises `ProgramError` for a time slice before its grace period ends."""
        stdin = self._running.stdin
        assert stdin is not None
        deadline = time.monotonic() + HANG_S
        while struct.unpack("i", fcntl.ioctl(stdin, termios.FIONREAD, b"\0" * 4))[0]:
            self._wait(deadline, f"its input of minute {minute} was not read")
        time.sleep(SETTLE_S)
        if self._has_all():
            return
        raise ProgramError(f"the time slice of minute {minute} came before the end of its grace period")

    def _has_all(self) -> bool:
        """Return whether exactly the expected bars are there."""
        counts = {symbol: kept.read() for symbol, kept in self._kept.items()}
        return all(counts[symbol] == len(self.expected[symbol]) for symbol in SYMBOLS)

    def _await(self, minute: int, symbols: Sequence[str]) -> None:
        """Wait for the time slice of a minute with the bars of `symbols`."""
        for symbol in symbols:
            self.expected[symbol].append(START + minute * MINUTE)
        begun = time.monotonic()
        while not all(kept.read() >= len(self.expected[symbol]) for symbol, kept in self._kept.items()):
            allowed_s = HANG_S if self._started_at is None else START_HANG_S
            self._wait(begun + allowed_s, f"the time slice of minute {minute} did not come")
        for symbol, kept in self._kept.items():
            at = len(self.expected[symbol]) - 1
            if at >= 0 and kept.times[at] != self.expected[symbol][at]:
                raise ProgramError(
                    f"minute {minute}: {symbol} of {kept.times[at]}, not {self.expected[symbol][at]}"
                )
        now = time.monotonic()
        if self._started_at is None:
            self.waits_s.append(now - begun)
        else:
            self.starts_s.append(now - self._started_at)
            self._started_at = None

    def _wait(self, deadline: float, fault: str) -> None:
        if self._running.poll() is not None:
            raise ProgramError(f"{fault}, because the program has ended: {self._errors()}")
        if time.monotonic() > deadline:
            raise ProgramError(f"{fault} in time")
        if self._started_at is None:
            time.sleep(POLL_S)
            return
        time.sleep(STARTING_S)
        for kept in self._kept.values():
            kept.close()

    def _errors(self) -> str:
        return (self._folder / "errors.txt").read_text(encoding="utf-8")[-2000:]

    def _stop(self, minute: int, stop: Stop, sent: Sequence[Rows]) -> None:
        """Stop the program in a minute, and start it again some minutes later. The last minutes are sent again."""
        rows = sent[-1]
        self._send(*rows.values())
        if stop.signal == signal.SIGKILL:
            time.sleep(self._dice.uniform(0, LONGEST_KILL_S))
        else:
            self._await(minute, SYMBOLS)
        self._end(stop.signal)
        self._time.set(_close(minute + stop.down) + SOON)
        counts = {symbol: kept.read() for symbol, kept in self._kept.items()}
        self._start()
        self._send(*(row for earlier in sent for row in earlier.values()))
        if stop.signal != signal.SIGKILL:
            return
        kept = [symbol for symbol in SYMBOLS if counts[symbol] > len(self.expected[symbol])]
        for symbol in kept:
            self.expected[symbol].append(START + minute * MINUTE)
        if not kept:
            self._await(minute, SYMBOLS)
        elif len(kept) < len(SYMBOLS):  # because the kill came between the two files
            self.noted[next(each for each in SYMBOLS if each not in kept)]["late"] += 1

    def _end(self, number: signal.Signals, *, is_last: bool = False) -> None:
        process = self._running
        self.cpu_s += cpu_of(process.pid)
        if is_last:
            assert process.stdin is not None
            process.stdin.close()
        else:
            process.send_signal(number)
        try:
            code = process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            raise ProgramError(f"the program has not ended after {HANG_S:.0f} s") from None
        if process.stdin is not None:
            process.stdin.close()
        if number == signal.SIGKILL:
            return
        if code != (0 if is_last else ExitCode.INTERRUPTED):
            raise ProgramError(f"the program has ended with {code}: {self._errors()}")
        report = json.loads((self._folder / "report.json").read_bytes())
        self.ends.append((self.noted, report))

    def _sample(self, minute: int) -> None:
        proc = Path(f"/proc/{self._running.pid}")
        threads = next(
            int(line.split()[1])
            for line in (proc / "status").read_text(encoding="ascii").splitlines()
            if line.startswith("Threads:")
        )
        descriptors = len(list((proc / "fd").iterdir()))
        size = sum(path.stat().st_size for path in self.out.rglob("*") if path.is_file()) / MB
        start = len(self.starts_s)
        self.samples.append(
            Sample(minute, start, resident_mb(self._running.pid)[0], descriptors, threads, size)
        )


def _close(minute: int) -> datetime:
    return START + (minute + 1) * MINUTE
