"""The check of an agent: it runs twice, replays, sees no later bar, and uses no outside."""

import json
import sys
import warnings
from asyncio import CancelledError, create_subprocess_exec, to_thread
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pydantic import BaseModel

from agentic_trading.cancellation import run_async
from agentic_trading.canonical import exact_value
from agentic_trading.desk.agents.errors import AgentFailedError
from agentic_trading.desk.session.agents import OwnAgent, load_agent
from agentic_trading.desk.session.feeds import STDIN, without_symbol
from agentic_trading.desk.session.options import RunOptions
from agentic_trading.desk.session.outside import KINDS, NOT_SEEN, Outside, OutsideWatch, OwnCode, state_of
from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.report import RunReport
from agentic_trading.desk.session.run import run_session
from agentic_trading.operate.session_folder import SessionFolder
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.errors import OptionError
from agentic_trading.replay import NetworkBlockedError, first_difference

MANY_WORKERS: Final = 8
DEFAULT_DATA: Final = "btcusdt-5m"

_ELSEWHERE: Final = "replay, new process"
_REPLAY: Final = "import sys; from agentic_trading.desk.session.agent_check import print_replay; print_replay(*sys.argv[1:])"

_INSTEAD: Final[Mapping[Outside, str]] = {
    "clocks": "Use desk.now",
    "random": "Use desk.chance()",
    "files": "Give the content as a setting, or as evidence that was known at the close",
    "network": "A replay has no network. Ask with desk.decide",
    "processes": "A replay would start them again",
}
"""The remedy for each kind of the outside."""


class CheckRow(BaseModel, frozen=True):
    """The result of one check.

    Attributes:
        passed: Whether the check found no fault. None if it did not run.
        detail: The evidence, or the reason why the check did not run.
        difference: The first difference between the decision logs, with its JSON path.
        places: The places in the code of the agent that are at fault.

    """

    name: str
    passed: bool | None
    detail: str = ""
    difference: str | None = None
    places: tuple[str, ...] = ()


class AgentCheck(BaseModel, frozen=True):
    """The results of all checks of an agent.

    Attributes:
        bars: The number of bars of all symbols.
        fills: The number of fills of the first run.
        passed: Whether all checks ran, and each passed.
        notes: The limits of this check on these bars.
        not_seen: The limits of every check.

    """

    agent: str
    data: tuple[str, ...]
    bars: int
    fills: int
    passed: bool
    checks: tuple[CheckRow, ...]
    notes: tuple[str, ...] = ()
    not_seen: tuple[str, ...] = NOT_SEEN

    @property
    def faults(self) -> list[str]:
        """The checks that did not pass, each with its first difference or place."""
        return [
            ": ".join(filter(None, (row.name, row.detail, row.difference, *row.places[:1])))
            for row in self.checks
            if not row.passed
        ]


@dataclass(frozen=True, slots=True)
class WatchedAgent:
    """An agent with a watched import."""

    own: OwnAgent
    watch: OutsideWatch


def load_watched(path: str, config: Path | None = None) -> WatchedAgent:
    """Import an agent as `load_agent` does, and watch what its modules use meanwhile."""
    module = path.partition(":")[0]
    file = source_file(module)
    if file is None:  # its import cannot be watched, because another importer runs it
        own = load_agent(path, config)
        found = getattr(sys.modules[own.agent_class.__module__], "__file__", None)
        return WatchedAgent(own, OutsideWatch(OwnCode(Path(found or "?"), module)))
    watch = OutsideWatch(OwnCode(file, module))
    with watch.watching():
        own = load_agent(path, config)
    return WatchedAgent(own, watch)


def check_options(
    own: OwnAgent, data: tuple[str, ...], folder: Path, *, timeframe: str = "", bars: int | None = None
) -> RunOptions:
    """Return the options of the runs of a check: a backtest with the offline answers of the agent.

    Raises:
        OptionError: If the data cannot be read twice, or another value is not allowed.

    """
    if any(without_symbol(name) == STDIN for name in data):
        raise OptionError("--data", STDIN, "samples and CSV files, because the bars are read several times")
    return RunOptions(
        config=PlatformConfig(mode="backtest"),
        provider="rules",
        data=data,
        out=folder,
        timeframe=timeframe,
        bars=bars,
        agent=own,
    )


def check_agent(
    agent: str,
    *,
    data: str | Sequence[str] = DEFAULT_DATA,
    timeframe: str = "",
    bars: int | None = None,
    agent_config: Path | None = None,
) -> AgentCheck:
    """Check an agent as `agentic-trading agent check` does, for example in its test.

    The agent runs three times and is replayed three times, with its offline answers and without a model. Call it
    outside of an event loop.

    Args:
        agent: The import path, such as `breakout:Breakout`. The working directory is searched too.
        data: The samples or CSV files.
        timeframe: The length of the bars. Empty if it is found from the bars.
        bars: The maximum number of bars of each symbol.
        agent_config: The TOML file with the settings of the agent.

    Raises:
        OptionError: If there is no such agent, or an argument is not allowed.
        TradingError: If the bars cannot be read. Errors of the agent are part of the result.

    """
    watched = load_watched(agent, agent_config)
    names = (data,) if isinstance(data, str) else tuple(data)
    with TemporaryDirectory(prefix="agentic-trading-check-") as folder:
        options = check_options(watched.own, names, Path(folder), timeframe=timeframe, bars=bars)
        check = _Check(watched, options)
        run_async(check.run())
    return check.result()


@dataclass(slots=True)
class _Check:
    watched: WatchedAgent
    options: RunOptions
    rows: list[CheckRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bars: int = 0
    fills: int = 0

    async def run(self) -> None:
        """Run all checks. Without a first run that ends, there is no decision to compare."""
        code = self.watched.watch.code
        before = state_of(code)
        with self.watched.watch.watching(), _unawaited(code) as places:
            first = await self._ran("run", "first")
        after = state_of(code)
        if first is not None:
            self.bars, self.fills = sum(each.bars for each in first.data), first.fills
            self.rows.append(_run_row(first, len(await self._lines("first")), places))
            await self._compare(first)
        else:
            replays = (*map(_replay_name, (1, MANY_WORKERS)), _ELSEWHERE)
            for name in ("same twice", *replays, "no look-ahead"):
                self.rows.append(CheckRow(name=name, passed=None, detail="the run did not end"))
        self.rows.append(_state_row(before, after))
        self.rows += [_outside_row(self.watched.watch, kind) for kind in KINDS]

    def result(self) -> AgentCheck:
        """Return all rows."""
        return AgentCheck(
            agent=self.watched.own.path,
            data=self.options.data,
            bars=self.bars,
            fills=self.fills,
            passed=all(row.passed for row in self.rows),
            checks=tuple(self.rows),
            notes=tuple(self.notes),
        )

    async def _compare(self, first: RunReport) -> None:
        lines = await self._lines("first")
        if lines and not self.fills:
            self.notes.append("the agent had no fill on these bars, so that few of its orders were checked")
        if not lines:
            self.notes.append("the agent decided nothing on these bars, so that equal logs prove little")
        if await self._ran("same twice", "second") is not None:
            self.rows.append(_row("same twice", lines, await self._lines("second")))
        for workers in (1, MANY_WORKERS):
            self.rows.append(await self._replay_row(workers))
        self.rows.append(await self._replay_elsewhere())
        await self._truncate(first, lines)

    async def _truncate(self, first: RunReport, lines: Sequence[bytes]) -> None:
        """Compare a run over the first half of the bars with the lines of the whole run up to its end."""
        half = max(each.bars for each in first.data) // 2
        if not half:
            self.rows.append(CheckRow(name="no look-ahead", passed=None, detail="needs 2 bars or more"))
            return
        part = await self._ran("no look-ahead", "part", bars=half)
        if part is None:
            return
        # Up to the first end, because symbols that start later end later.
        ends = [each.last for each in part.data if each.last is not None]
        shown = up_to(lines, min(ends))
        self.rows.append(_row("no look-ahead", shown, up_to(await self._lines("part"), min(ends))))
        if lines and not shown:
            self.notes.append(
                "the agent decided nothing on the first half of the bars. Check it on more bars"
            )

    async def _replay_row(self, workers: int) -> CheckRow:
        folder = self.options.out / "first"
        return await _replayed(folder, self.watched.own, workers, _replay_name(workers))

    async def _replay_elsewhere(self) -> CheckRow:
        """Replay in a process of its own, in which texts have other hashes and modules are new."""
        words = ("-c", _REPLAY, json.dumps(sys.path), str(self.options.out / "first"), self.watched.own.path)
        process = await create_subprocess_exec(sys.executable, *words, stdout=PIPE, stderr=PIPE)
        try:
            out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode:
            last = (err.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"])[
                -1
            ]
            return CheckRow(name=_ELSEWHERE, passed=False, detail=last)
        return CheckRow.model_validate_json(out.splitlines()[-1])

    async def _ran(self, name: str, folder: str, bars: int | None = None) -> RunReport | None:
        """Return the report of a run. If the agent fails, its row is added here."""
        options = replace(self.options, out=self.options.out / folder, bars=bars or self.options.bars)
        try:
            report = await run_session(options, on_progress=lambda _progress: None)
        except AgentFailedError as e:
            self.rows.append(CheckRow(name=name, passed=False, detail=str(e)))
            return None
        if report.interrupted:
            raise CancelledError
        return report

    async def _lines(self, folder: str) -> list[bytes]:
        path = SessionFolder(self.options.out / folder).decisions(1)
        return (await to_thread(path.read_bytes)).splitlines()


def _run_row(report: RunReport, lines: int, unawaited: Sequence[str]) -> CheckRow:
    """Return the row of a run that ended, with its orders. Calls without `await` are a fault."""
    bars, denied = sum(each.bars for each in report.data), sum(report.intents_rejected.values())
    detail = f"{bars:,} bars, {lines:,} decision lines, {report.orders:,} orders, {report.fills:,} fills"
    if denied:
        number, rule = max((number, rule) for rule, number in report.intents_rejected.items())
        detail += f", {denied:,} denied requests ({rule} {number:,})"
    if unawaited:
        detail += ". A call without `await` does nothing. Write `await` before it"
    return CheckRow(name="run", passed=not unawaited, detail=detail, places=tuple(unawaited))


@contextmanager
def _unawaited(code: OwnCode) -> Generator[list[str]]:
    """Collect the places at which the code of an agent makes a coroutine that it does not await."""
    places: list[str] = []
    depth = sys.get_coroutine_origin_tracking_depth()
    sys.set_coroutine_origin_tracking_depth(1)
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", RuntimeWarning)
            yield places
    finally:
        sys.set_coroutine_origin_tracking_depth(depth)
    counted: Counter[str] = Counter()
    for each in found:
        origin = getattr(each.source, "cr_origin", None)
        if origin and code.has(origin[0][0]):
            name = getattr(each.source, "__qualname__", "")
            counted[f"{Path(origin[0][0]).name}:{origin[0][1]} {name}"] += 1
    places += [f"{place} ({count:,} times)" if count > 1 else place for place, count in counted.items()]


def up_to(lines: Iterable[bytes], moment: datetime) -> list[bytes]:
    """Return the lines of a decision log that are not later than `moment`."""
    return [line for line in lines if datetime.fromisoformat(exact_value(line)["as_of"]) <= moment]


def _row(name: str, lines: Sequence[bytes], others: Sequence[bytes]) -> CheckRow:
    difference = first_difference(lines, others)
    return CheckRow(
        name=name,
        passed=difference is None,
        detail=f"{len(lines):,} lines compared",
        difference=None if difference is None else str(difference),
    )


async def _replayed(folder: Path, own: OwnAgent, workers: int, name: str) -> CheckRow:
    try:
        report = await replay(folder, workers=workers, agent=own)
    except (AgentFailedError, NetworkBlockedError) as e:
        return CheckRow(name=name, passed=False, detail=str(e))
    detail = f"{report.answered:,} recorded answers"
    if report.misses:
        detail = f"{detail}, {report.misses:,} not in the recording"
    return CheckRow(
        name=name,
        passed=report.identical,
        detail="; ".join((detail, *report.request_changes)),
        difference=report.first_difference,
    )


def print_replay(path: str, folder: str, agent: str) -> None:
    """Print the row of a replay in this process as a line of JSON. `path` are the folders of modules."""
    sys.path[:] = json.loads(path)
    row = run_async(_replayed(Path(folder), load_agent(agent), 1, _ELSEWHERE))
    sys.stdout.write(f"\n{row.model_dump_json()}\n")


def _replay_name(workers: int) -> str:
    return f"replay, {workers} worker{'s' if workers > 1 else ''}"


def _state_row(before: dict[str, str], after: dict[str, str]) -> CheckRow:
    """Return the row of the values outside the instance that a run has changed."""
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if not changed:
        return CheckRow(name="state", passed=True, detail="only in the instance")
    detail = "outside the instance, so that it is left from one run to the next. Use attributes of self"
    return CheckRow(name="state", passed=False, detail=detail, places=tuple(changed))


def _outside_row(watch: OutsideWatch, kind: Outside) -> CheckRow:
    found = watch.of(kind)
    if not found:
        return CheckRow(name=kind, passed=True, detail="not used")
    times = tuple(f"{each.place} {each.what}{f' ({count:,} times)' * (count > 1)}" for each, count in found)
    return CheckRow(name=kind, passed=False, detail=_INSTEAD[kind], places=times)


def source_file(module: str) -> Path | None:
    """Return the source file of a module without an import, or None if it is not found in this way."""
    top, *rest = module.split(".")
    # The working directory last, as in `imported_module`.
    try:
        spec = find_spec(top) or PathFinder.find_spec(top, [str(Path.cwd())])
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None
    bases = [Path(folder, *rest) for folder in spec.submodule_search_locations or ()]
    files = [file for base in bases for file in (base / "__init__.py", base.with_name(f"{base.name}.py"))]
    return next((file for file in files if file.is_file()), None)
