"""The dashboard page Sessions: the runs of all sessions, and the report of each."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from agentic_trading.cancellation import run_async
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.desk.inference import rate_for
from agentic_trading.desk.report.assumptions import ReportTerms, sample_row
from agentic_trading.desk.report.page import dollars, html_of, moment, money, page_of, style_digest
from agentic_trading.desk.report.record import RunOnRecord, read_run
from agentic_trading.errors import TradingError
from agentic_trading.monitor.page import HtmlFile, NotShownError, PageAnswer, PageRequest
from agentic_trading.monitor.sources import ShownLog, Sources
from agentic_trading.operate.choices import pluralize
from agentic_trading.operate.lines import printable
from agentic_trading.operate.session_folder import RunManifest, SessionFolder
from agentic_trading.platform.errors import OptionError

ABSENT: Final = "-"
MOST_ROWS: Final = 200
"""Runs on the page, the newest first."""

READ_WITHIN_S: Final = 2.0
"""Time limit of a page for reading the P&L of runs, in seconds. It reads at least one run, and keeps each P&L."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A run of a session. `tone` is that of the P&L: good, bad or empty."""

    name: str
    href: str
    run: str
    started: str
    data: str
    model: str
    state: str
    pnl: str
    tone: str
    cost: str
    out_of_sample: str
    digest: str


@dataclass(frozen=True, slots=True)
class SessionsView:
    """Everything on the page. `note` counts the runs."""

    rows: tuple[SessionRow, ...]
    note: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of a log."""

    log: ShownLog
    manifest: RunManifest

    @property
    def key(self) -> tuple[Path, int, str | None]:
        """The run in its state: a run that was resumed and has ended again has another digest."""
        return self.log.path, self.manifest.run_number, self.manifest.digest


@dataclass(frozen=True, slots=True)
class _RunFigures:
    """Figures that only the whole record of a run has."""

    pnl: str = ABSENT
    tone: str = ""
    cost: str = ABSENT
    out_of_sample: str = ABSENT
    problem: str = ""


class SessionsPage:
    """The page Sessions."""

    name = "Sessions"
    paths = ("/sessions", "/sessions/{name}", "/sessions/{name}/{run}")

    def __init__(self, sources: Sources, *, clock: Clock | None = None) -> None:
        self._sources = sources
        self._clock = clock or SystemClock()
        self._figures: dict[tuple[Path, int, str | None], _RunFigures] = {}
        self._reading = asyncio.Lock()

    async def answer(self, request: PageRequest) -> PageAnswer | HtmlFile:
        """Return the list of runs, or the report of one.

        Raises:
            NotShownError: If there is no such run, or it is of another tenant.
            TradingError: If the record of the run cannot be read.

        """
        if name := request.parameters.get("name"):
            return await self.report(name, request.parameters.get("run", ""))
        return PageAnswer("agentic_trading.desk.report/sessions.html.j2", await self.page())

    async def report(self, name: str, number: str = "") -> HtmlFile:
        """Return the report of a run, by default the newest of its session."""
        runs = [each for each in (await self._runs())[0] if each.log.name == name]
        wanted = [each for each in runs if number in {"", str(each.manifest.run_number)}]
        if not wanted:
            raise NotShownError
        newest = max(wanted, key=lambda each: each.manifest.run_number)
        html = await asyncio.to_thread(_report, newest)
        return HtmlFile(html, await asyncio.to_thread(style_digest))

    async def page(self) -> SessionsView:
        """Return the list of runs, the newest first."""
        runs, problems = await self._runs()
        runs.sort(key=lambda each: each.manifest.started_at, reverse=True)
        shown = runs[:MOST_ROWS]
        await self._read(shown)
        figures = [self._figures.get(each.key) for each in shown]
        problems += [each.problem for each in figures if each is not None and each.problem]
        missing = sum(
            each is None and run.manifest.digest is not None for run, each in zip(shown, figures, strict=True)
        )
        rows = [_row(run, each or _RunFigures()) for run, each in zip(shown, figures, strict=True)]
        return SessionsView(tuple(rows), _note(len(runs), missing), tuple(problems))

    async def _runs(self) -> tuple[list[_Run], list[str]]:
        """Return all runs of the tenant, and problems."""
        found, problems = list[_Run](), list[str]()
        for log in await self._sources.logs():
            manifests, more = await asyncio.to_thread(_manifests, log)
            problems += [printable(self._sources.without_paths(each)) for each in more]
            found += [_Run(log, each) for each in manifests if self._sources.tenant in {None, each.tenant}]
        return found, [] if self._sources.tenant is not None else problems

    async def _read(self, runs: Sequence[_Run]) -> None:
        """Read ended runs for a while, the first ones first. A running one has no result yet."""
        async with self._reading:
            ends_at = self._clock.monotonic() + READ_WITHIN_S
            left = [each for each in runs if each.manifest.digest is not None and not self._is_read(each)]
            # Damaged ones are read again, because they may be copied just now, but do not delay the others.
            for each in sorted(left, key=lambda run: run.key in self._figures):
                self._figures[each.key] = await self._read_one(each)
                if self._clock.monotonic() >= ends_at:
                    return

    def _is_read(self, run: _Run) -> bool:
        return run.key in self._figures and not self._figures[run.key].problem

    async def _read_one(self, run: _Run) -> _RunFigures:
        try:
            return await asyncio.to_thread(_figures, run)
        except TradingError as e:
            text = printable(self._sources.without_paths(f"{run.log.name} cannot be read: {e}"))
            return _RunFigures(problem=text)


def _manifests(log: ShownLog) -> tuple[list[RunManifest], list[str]]:
    """Return the manifests of the runs of a log, and problems."""
    folder, found, problems = SessionFolder(log.path.parent), list[RunManifest](), list[str]()
    if folder.log.name != log.path.name:
        return [], []
    for number in range(1, folder.last_run() + 1):
        try:
            found.append(folder.read_manifest(number))
        except OptionError as e:
            problems.append(str(e))
    return found, problems


def _on_record(run: _Run) -> RunOnRecord:
    # In a loop of its own, because a run is played again, which would block the loop of the server.
    read = run_async(read_run(run.log.path.parent, run=run.manifest.run_number))
    return replace(read, folder=SessionFolder(Path(run.log.name)))  # pages have no paths of the machine


def _report(run: _Run) -> str:
    read = _on_record(run)
    return html_of(page_of(read, ReportTerms(rate_for(read.currency))))


def _figures(run: _Run) -> _RunFigures:
    read = _on_record(run)
    if read.log.of_run((run.manifest.session_id, run.manifest.run_number)):
        # The P&L of a part would look like that of the run.
        rest = f"The report of run {run.manifest.run_number} has what is left of it"
        return _RunFigures(problem=printable(f"The record of {run.log.name} is {read.log.verdict}. {rest}"))
    pnl = read.report.pnl
    return _RunFigures(
        pnl=f"{money(pnl)} {read.currency}",
        tone="good" if pnl > 0 else "bad" if pnl < 0 else "",
        cost=dollars(sum(each.first_cost_nusd for each in read.attempts)),
        out_of_sample=sample_row(read).value,
    )


def _row(run: _Run, figures: _RunFigures) -> SessionRow:
    manifest = run.manifest
    state = "ended" if manifest.has_ended else "interrupted" if manifest.interrupted else "not ended"
    symbols = [each.symbol for each in manifest.data]
    data = (
        ", ".join(symbols)
        if len(symbols) <= 4
        else f"{manifest.data[0].name}, {pluralize(len(symbols), 'symbol')}"
    )
    return SessionRow(
        name=printable(run.log.name),
        href=f"/sessions/{quote(run.log.name, safe='')}/{manifest.run_number}",
        run=f"{manifest.run_number:,}",
        started=moment(manifest.started_at),
        data=printable(data),
        model=printable(
            f"{manifest.provider}/{manifest.model}" if manifest.model else str(manifest.provider)
        ),
        state=state,
        pnl=figures.pnl,
        tone=figures.tone,
        cost=figures.cost,
        out_of_sample=figures.out_of_sample,
        digest=(manifest.digest or ABSENT)[:12],
    )


def _note(count: int, missing: int) -> str:
    parts = [
        f"{pluralize(count, 'run')}, newest first." if count else "No run of a session is in these folders."
    ]
    if count > MOST_ROWS:
        parts.append(f"The newest {MOST_ROWS} are shown.")
    if missing:
        parts.append(f"The P&L of {missing:,} is not read yet. Reload the page to read more.")
    return " ".join(parts)
